"""Estimates over repeats: means, differences and ratios, each with a 95 % interval.

Read `estimate.py` first. `bootstrap.py` has intervals by resampling, `best_variant.py` the
probability that a variant is the best, and `power.py` the repeats that would tell two variants
apart. The folder imports the core only.
"""
