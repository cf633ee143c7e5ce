"""Live detection of stragglers: reads one step after the other while the run goes on.

It reports each straggler's start and end, with the same definitions as the final analysis. Read
`detector.py` first, then `series_bank.py` (many series at once) and `cusum.py` (the test). The
folder may import `analysis/detection/` and `analysis/tables/`.
"""
