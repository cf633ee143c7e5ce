"""Analysis: from the traces of a run to its stragglers, their costs and the report.

Data passes through the folders in this order: `tables/` (run folder to numpy columns), `formats/`
(traces of other tools), `detection/` (slow intervals and causes), `replay/` (costs and what-ifs),
`findings/` (results and sentences) and `report/`. `campaign/` compares the setups of a campaign,
with the intervals of `estimates/`. `cost_model/` fits predictions of step times to
the tables. `evaluate/` scores the findings on generated runs, and `notebooks/` has examples.

Read `tables/load_run.py` and `findings/analyze_run.py` first. The room may import the core and
itself only; `tests/test_architecture.py` lists the order of its folders.
"""
