"""Run folder: the record of a run, its tables, analysis and exports.

Read `store.py` first (folders, locks and records), then `journal.py` (the record while the run
goes on) and `collect.py` (streams to tables to analysis). This package may import the core, the
rooms, and `scenario/`.
"""
