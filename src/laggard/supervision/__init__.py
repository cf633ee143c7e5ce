"""Supervision of processes: log tails, hangs, peer failures and termination signals.

Local and remote runs share this package. Read `hang_detection.py` first. It may import the core
and `workloads/` (for heartbeats).
"""
