"""Timelines: spans arranged by step, rank and phase.

Read `timeline.py` (lockstep runs) and `rank_timeline.py` (asynchronous ranks) first. The folder
may import the core and `analysis/tables/`.
"""
