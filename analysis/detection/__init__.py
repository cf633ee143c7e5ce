"""Detection of slow work: reference durations, slow intervals and the causes of stragglers.

Read `families.py` (kinds of slow work), `reference.py` (expected durations), `intervals.py` (slow
intervals of one series) and `causes.py` (the result) first. Ranks in lockstep are examined by the
detectors in `lockstep/`, asynchronous ranks by `asynchronous_causes.py`, and runs in progress by
`online/`.

The folder may import the core and, of the analysis, `tables/` and `formats/`.
"""
