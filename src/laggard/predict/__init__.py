"""Predictions before a run: steps of a model on hosts, and trainings of a scenario.

Read `predict_scenario.py` first. `host_steps.py` has the seconds of steps: `machine_speed.py` and
`message_speed.py` measure them on this machine, `step_times.py` fits them to recorded runs.
`planned_training.py` turns a scenario into a training to simulate, and `forecast.py` finds its
speed and its limit. This package composes `scenario`, `workloads` and `analysis`; the formula and
the simulation are in `core`.
"""
