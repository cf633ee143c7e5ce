"""network_emulation."""
