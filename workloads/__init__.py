"""Programs that run on the emulated hosts: models, data, training loops, strategies and tracing.

Read `plan.py` first (plans of all processes), then `worker.py` (process of one rank) and
`training_loop.py`. `parameter_server.py`, `evaluator.py`, `link_sampler.py` and
`data_preparation.py` are the other processes. The packages, in the order of their imports, are
`specification/`, `output/`, `transport/`, `datasets/`, `models/`, `tracing/`, `compress/`,
`balancing/`, `coordination/`, `strategies/` and `scheduling/` (policies over several jobs); each
may import only those before it.

This room may import the core and itself, but no other room and nothing of the application.
"""
