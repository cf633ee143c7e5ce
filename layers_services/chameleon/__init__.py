"""Chameleon Cloud: bare-metal nodes, leased and deployed through the APIs of OpenStack.

Read `plan.py` first (a scenario's nodes), then `reserve.py` (their lease, deployment and release).
EnOSlib's provider is not used: it waits without a limit, shares a lease with every experiment of
the same name, and leaves what a failure left. This package may import `g5k/` for E2Clab's services,
`ssh/` and what is above them.
"""
