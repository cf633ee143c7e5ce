"""Import of traces that torch.profiler (Kineto) writes.

`trace_file.py` parses the trace of one rank, and `step_windows.py` finds its steps.
`host_steps.py` and `device_steps.py` interpret a step, with the names in `step_phases.py` and the
groups in `process_groups.py`. The folder `ranks/` joins the traces of all ranks to a run. This
folder may import `tables/` and `formats/import_run/`.
"""

JSON_SUFFIXES = (".json", ".json.gz")
"""Suffixes of the profiler's files."""
