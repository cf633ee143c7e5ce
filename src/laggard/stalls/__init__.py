"""Stalls of a scenario, measured with short runs that differ in one thing each: `laggard stalls`.

`stall_variants.py` plans the runs, `measure_stalls.py` makes them as a campaign and reads them, and
`stall_output.py` says what they tell. The meaning of the numbers is in `laggard.analysis.stalls`.
"""
