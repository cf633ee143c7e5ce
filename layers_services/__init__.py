"""layers_services."""
