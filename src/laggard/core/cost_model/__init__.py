"""Cost model of step times: the formula, its prediction, and what was never measured.

A step takes fixed + a FLOPs + b tensors + c bytes / rate + d latency x rounds seconds. All
coefficients are at least zero and belong to one device class. `demand.py` defines what a step
demands (read it first), `step_cost.py` predicts its seconds with an interval, and
`measured_range.py` marks demands unlike the measured ones. Coefficients are fitted in
`analysis/cost_model/`. This package imports `laggard.core` only.
"""
