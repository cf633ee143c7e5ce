"""Emulation of a continuum's links and hosts: their limits, planned, applied, changed and checked.

Read first: `model.py` (the scenario files `network.yaml` and `heterogeneity.yaml`) and
`link_plan.py` (the plan that every backend applies). Then the folders:

- `links/`: delay, rate, loss and jitter between hosts, with the backends `netem/` and
  `userspace/`.
- `compute/`, `memory/`, `storage/`: CPU share, memory limit and drive of each host.
- `dynamics/`: changes at given times during the run.
- `fidelity/`: checks before training and the monitor during training.

Modules here import `laggard.core` and this package, never another room.
"""
