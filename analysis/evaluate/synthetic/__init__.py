"""Synthetic runs with known stragglers, for evaluation and tests.

Read `trace_spec.py` (input) and `run_generator.py` (output) first. The folder imports the core
and, of the analysis, `tables/` and `detection/families.py`.
"""
