"""Run on this machine: processes, supervision, fidelity monitoring and churn.

Read `runner.py` first (outside the sandbox), then `controller.py` (inside it), then `training.py`.
This package composes the rooms, so it may import all of them, besides the core, `run_folder/`,
`scenario/` and `supervision/`.
"""
