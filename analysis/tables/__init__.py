"""Tables of a run folder as numpy columns.

Read `columns.py` (the tables) and `load_run.py` (reading a run folder) first. `timelines/`
arranges the spans by step and rank. The folder may import the core only.
"""
