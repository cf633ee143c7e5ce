"""Findings: stragglers with their costs, and the sentences that report them.

Read `analyze_run.py` (entry point), `analysis_result.py` (result) and `answer.py` (sentences)
first. `compare_runs.py` and `compare_folders.py` compare several runs. The folder may import the
core and, of the analysis, `estimates/`, `tables/`, `formats/`, `detection/` and `replay/`.
"""
