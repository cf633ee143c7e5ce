"""RO-Crates of runs and campaigns: written, and read from strangers.

Read `write_crate.py` first; `crate_metadata.py` describes the files, and `source_tree.py` reads
folders and archives within limits. This folder imports `run_folder/` and `laggard.core`.
"""
