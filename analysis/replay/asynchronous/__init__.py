"""Replay of asynchronous ranks by the rule by which they wait for each other.

Read `step_dependencies.py` and `async_replay.py` first. `async_analysis.py` is the entry point.
This folder may import `tables/`, `detection/`, the modules of `replay/` itself and
`replay/lockstep/`.
"""
