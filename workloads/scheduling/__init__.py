"""Policies that share the devices of a cluster between jobs, and rounds that follow them. Pure.

Read `cluster_jobs.py` first (devices, jobs and what a policy sees), then `policy.py` (interface)
and `rounds.py` (who runs in the next round). `linear_program.py` solves what most policies ask.
"""
