"""Import of traces that torch.profiler (Kineto) writes.

Read `reader.py` first. Data passes in this order: `trace_paths.py` finds the files of all ranks,
`trace_file.py` parses one, and `step_windows.py` finds its steps. `host_steps.py` and
`device_steps.py` interpret a step, with the names in `step_phases.py` and the groups in
`process_groups.py`. `rank_files.py` and `profiling_cycles.py` check that the files belong together.
`synchronizations.py` matches collectives between ranks, and `import_notes.py` says what could not
be converted. This folder may import `tables/` and `formats/import_run/`.
"""

JSON_SUFFIXES = (".json", ".json.gz")
"""Suffixes of the profiler's files."""
