"""Campaign: runs of scenarios with every combination of varied values.

Read `run_campaign.py` first. `run_subprocess.py` makes one run; `evaluate/` and `verify/` use it too.
Cells that need no continuum are computed by `tasks/`.
This folder imports `run_folder/`, `supervision/` and `laggard.core`; `tasks/` also imports rooms
and testbeds.
"""
