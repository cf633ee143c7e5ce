"""Replay of asynchronous ranks by the rule by which they wait for each other.

Read `step_dependencies.py`, `async_replay.py` and `step_savings.py` first. `async_analysis.py` is
the entry point. This folder may import `tables/`, `detection/` and the modules of `replay/` itself.
"""
