"""Traces that torch.profiler (Kineto) writes."""

JSON_SUFFIXES = (".json", ".json.gz")
"""Endings of its files."""
