"""Evaluation of the analysis on runs with known stragglers.

Read `evaluation.py` first. It scores generated runs (`laggard.analysis.evaluate`), or real runs of
`injected_cases.py` against their `ground_truth.py`. This folder imports `campaign/`, the room
`analysis` and `laggard.core`.
"""
