"""Fit of the cost model (`laggard.core.cost_model`) to measured step times.

`fit_step_cost.py` fits the formula to measurements (read it first), and `host_measurements.py`
takes the measurements from a run folder. The folder may import the core and `analysis/tables/`.
"""
