"""Reading and writing of ByteDance's straggler traces.

Read `operations.py` first. `parquet_file.py` reads and writes files, `to_run.py` and `from_run.py`
convert. This folder may import `tables/` and `formats/import_run/`.
"""
