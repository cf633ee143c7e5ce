"""Shared parts of all readers of other tools' traces.

Read `trace_format.py` first. `imported_run.py` builds the run, and `main_lane.py` separates work
from waits. This folder may import `tables/` and the core.
"""
