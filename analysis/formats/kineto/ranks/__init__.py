"""The traces of all ranks of a job as one run.

Read `reader.py` first. `trace_paths.py` finds the files of all ranks, `rank_files.py` and
`profiling_cycles.py` check that they belong together, `group_identities.py` and
`synchronizations.py` match collectives between ranks, and `import_notes.py` says what could not be
converted. This folder may import `formats/kineto/`, `formats/import_run/` and `tables/`.
"""
