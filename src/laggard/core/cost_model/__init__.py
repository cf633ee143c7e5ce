"""Durations of operations, from the sizes of work and messages.

`ring_all_reduce.py` has the all-reduce over unequal links.
"""
