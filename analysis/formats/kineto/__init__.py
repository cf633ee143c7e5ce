"""Import of traces that torch.profiler (Kineto) writes.

`trace_file.py` parses the trace of one rank, and `step_windows.py` finds its steps.
`host_steps.py` and `device_steps.py` interpret a step, with the names in `step_phases.py` and the
groups in `process_groups.py`. The folder `ranks/` joins the traces of all ranks to a run. This
folder may import `tables/`, `formats/import_run/` and `formats/trace_json/`.
"""

from laggard.analysis.formats.trace_json.json_file import JSON_SUFFIXES

__all__ = ["JSON_SUFFIXES"]
