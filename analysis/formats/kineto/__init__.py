"""Import of traces that torch.profiler (Kineto) writes.

Read `reader.py` first, then `trace_file.py` (parsing) and `step_phases.py` (interpretation). This
folder may import `tables/`, `formats/import_run/` and `formats/trace_json/`.
"""

from laggard.analysis.formats.trace_json.json_file import JSON_SUFFIXES

__all__ = ["JSON_SUFFIXES"]
