"""Reproduction: a run or campaign is run again, and compared with the original.

Read `reproduce_source.py` first. `program_trust.py` decides whether code of a stranger may run,
`facts.py` compares what made the runs, and `reproduction_report.py` formats the result. This
folder imports `campaign/`, `crate/`, `scenario/`, `run_folder/` and the analysis.
"""
