"""Replay of ranks in lockstep, by max-plus algebra.

Read `maxplus.py` first: it turns durations into a makespan. `lockstep_analysis.py` is the entry
point. This folder may import `tables/`, `formats/`, `detection/` and the modules of `replay/`
itself.
"""
