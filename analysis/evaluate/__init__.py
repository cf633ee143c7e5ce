"""Evaluation of the analysis: generated runs with known stragglers, and scores of the findings.

Read `case_evaluation.py` (one case from generation to judgment) and `docs/evaluation.md` first.
The folder may import the core and every other folder of the analysis; none of them imports it.
"""
