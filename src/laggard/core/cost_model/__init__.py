"""Durations of operations, from the sizes of work and messages.

`links.py` has the rate and the round trip between two hosts, and `ring_all_reduce.py` the
all-reduce over unequal links. This folder imports `core/errors.py` only.
"""
