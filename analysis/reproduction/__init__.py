"""Comparison of a run with its reproduction: what agrees, what differs, and what could be told.

Read `compare_pair.py` first; `block_comparison.py` has the statistics. This folder imports
`tables/`, `findings/` and `laggard.core`.
"""
