"""Sections of `workload.yaml` that need no strategy, and the names of user callables."""
