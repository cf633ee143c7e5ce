"""CPU shares that mean speed: a phase takes 1 / share times its CPU time, whatever its length.

Phases of 1 ms are slowed exactly like phases of 100 ms, whatever the gaps between them. Two
simpler methods fail:

- A plain quota: its credit refills while the worker communicates. At 10 %, phases of 1 ms run
  three times too fast.
- A busy idle-priority process that consumes the credit (a stationary duty cycle): the kernel
  refuses quotas below 1 ms. A phase of 0.5 ms is then held at most once, and took 1.3 to 1.7 times
  too long.

So the loop is closed. `limiter` reads the CPU clock of each host, `ledger` computes the wall time
that the host owes for it, and a gate (`stop_signals`) holds the host back for that time, only
while it would compute. There are two gates:

- With cgroup rights, the gate is a quota of a millisecond or more. A real-time process on the
  host's core grants it by hand. The kernel stops the host at the end of each grant, even if the
  limiter looks late, and sleeping threads are not disturbed.
- Without such rights, one process at normal priority with a short scheduling slice sends SIGSTOP
  and SIGCONT. Every thread wakes up for each signal, which costs the worker some percent.

`benchmarks/cpu_shares.md` has the figures of both gates and of the rejected methods. If a worker
counts its work, `efficiency` converts CPU time into work. `warmth` keeps the cores awake, and
`host_counters` reports due and lost time to the fidelity monitor.

Read `ledger` first, then `limiter`. Modules here import the core and `dilation`, `forked`,
`realtime`, `model` and `links/plan_links` of this room.
"""

from laggard.network_emulation.compute.cgroups import (
    CgroupSet,
    HostCgroup,
    prepare_cgroups,
    run_folders,
    sweep_cgroups,
)
from laggard.network_emulation.compute.controller import Mechanism, ShareController, open_shares

__all__ = [
    "CgroupSet",
    "HostCgroup",
    "Mechanism",
    "ShareController",
    "open_shares",
    "prepare_cgroups",
    "run_folders",
    "sweep_cgroups",
]
