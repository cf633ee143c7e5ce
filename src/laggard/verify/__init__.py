"""Measurement of how exactly this machine emulates a continuum (`laggard verify`).

Read `verification.py` first; `rounds.py` makes the rounds that it judges. This folder imports
`campaign/`, `run_folder/`, the room `network_emulation` and `laggard.core`.
"""
