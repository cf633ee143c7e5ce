"""Supervision of processes: log tails, hangs, peer failures and termination signals."""
