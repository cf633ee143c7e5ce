"""Import of dumps of torch's flight recorder, which keeps the last collectives of every rank.

Read `reader.py` first, then `dump_file.py` (parsing) and `collectives.py` (arrivals and steps).
This folder may import `tables/`, `formats/import_run/` and `formats/trace_json/`.
"""
