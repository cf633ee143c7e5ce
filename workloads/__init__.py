"""Programs that run on the emulated hosts: models, data, training loops, strategies and tracing.

Read `plan.py` first (plans of all processes), then `worker.py` (process of one rank) and
`training_loop.py`. `parameter_server.py`, `evaluator.py`, `link_sampler.py` and
`data_preparation.py` are the other processes. The subpackages, from low to high, are
`specification/`, `models/`, `datasets/`, `output/`, `transport/`, `tracing/`, `compress/`,
`balancing/`, `coordination/` and `strategies/`.

This room may import the core and itself, but no other room and nothing of the application.
"""
