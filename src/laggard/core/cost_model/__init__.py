"""Durations of operations, from the sizes of work and messages.

A step takes fixed + a FLOPs + b tensors + c bytes / rate + d latency x rounds seconds. All
coefficients are at least zero and belong to one device class. `demand.py` defines what a step
demands (read it first), `step_cost.py` predicts its seconds with an interval, and
`measured_range.py` marks demands unlike the measured ones. Coefficients are fitted in
`analysis/cost_model/`. `links.py` has the rate and the round trip between two hosts,
`ring_all_reduce.py` the all-reduce over unequal links, `collectives.py` broadcasts and averages,
`shared_link.py` messages over one link, and `server_queue.py` workers of one server. This package
imports `laggard.core` only.
"""
