"""Campaigns: runs of scenarios with every combination of varied values.

Read `run_campaign.py` first. `run_subprocess.py` makes one run, and `evaluate/` and `verify/` use
it too. This folder imports `scenario/`, `run_folder/`, `supervision/` and `laggard.core`.
"""
