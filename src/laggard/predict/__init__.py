"""Predictions before a run: step times of a model on the hosts of earlier runs.

`step_times.py` has all of it. This package composes `workloads` (operations of a model) and
`analysis` (measured steps, fit); the formula is in `core/cost_model/`.
"""
