"""Import of traces that torch.profiler (Kineto) writes.

Read `reader.py` first, then `trace_file.py` (parsing) and `step_phases.py` (interpretation). This
folder may import `tables/` and `formats/import_run/`.
"""

JSON_SUFFIXES = (".json", ".json.gz")
"""Suffixes of the profiler's files."""
