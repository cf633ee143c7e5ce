"""Campaigns: runs of scenarios with every combination of varied values.

Read `run_campaign.py` first. `run_subprocess.py` makes one run, and `evaluate/` and `verify/` use
it too. Cells that need no continuum are computed by `tasks/`. This folder imports `scenario/`,
`run_folder/`, `supervision/`, `remote/` and `laggard.core`; `tasks/` also imports rooms.
"""
