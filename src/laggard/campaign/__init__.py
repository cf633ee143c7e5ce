"""Campaign: runs of one scenario with every combination of varied values.

Read `sweep.py` first. `run_subprocess.py` makes one run; `evaluate/` and `verify/` use it too.
This folder imports `run_folder/`, `supervision/` and `laggard.core`.
"""
