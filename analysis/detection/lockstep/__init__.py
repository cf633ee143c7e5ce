"""Detectors of causes in lockstep runs, and their registry.

Read `cause_detector.py` (the contract) and `registry.py` (the order) first. The folder may import
`analysis/detection/` and `analysis/tables/`.
"""
