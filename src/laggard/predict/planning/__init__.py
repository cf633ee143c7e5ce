"""Plans of a model on the hosts of a scenario."""
