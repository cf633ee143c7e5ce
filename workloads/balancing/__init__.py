"""Balancing of batches by speed: cost of a rank's steps, allocation of samples, exchange of costs.

Read `allocation.py` first (the optimum for known costs), then `cost_estimator.py` (costs from
measured steps). `balancer.py` and `server_balancer.py` connect them to a training without and with
a server. The package may import the core and the packages below it, from `specification/` to
`compress/`.
"""
