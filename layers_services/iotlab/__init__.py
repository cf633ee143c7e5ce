"""FIT IoT-LAB: boards reserved through the client of EnOSlib's provider.

Read `plan.py` first (a scenario's boards), then `reserve.py` (their reservation, preparation and
release). This package may import `g5k/` for E2Clab's services, `ssh/` and what is above them.
"""
