"""Stalls of a training, from runs that differ in one thing each.

`stall_estimates.py` says what each run tells. The folder may import the core, `estimates/` and
`tables/`.
"""
