"""Shared parts of all readers of other tools' traces.

Read `trace_format.py` first. `imported_run.py` builds the run, `main_lane.py` separates work from
waits, and `clock_offsets.py` relates the clocks of ranks. This folder may import `tables/` and the
core.
"""
