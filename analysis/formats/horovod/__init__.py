"""Import of Horovod's timeline, the file that `HOROVOD_TIMELINE` names.

Read `reader.py` first, then `timeline_file.py` (parsing). This folder may import `tables/`,
`formats/import_run/` and `formats/trace_json/`.
"""
