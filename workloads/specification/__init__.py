"""Sections of `workload.yaml` that depend on no strategy, and the names of user callables.

Read `training.py` and `datasets.py` first. The docstrings and field descriptions of the sections
appear in the JSON Schema that users see. This package imports `laggard.core` only.
"""
