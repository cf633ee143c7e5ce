"""Clients of a federated training: the samples of each, and the record of its rounds.

This package may import the core, `specification/`, `output/` and `datasets/`.
"""
