"""CPU shares that mean speed: a phase takes 1 / share times its CPU time, be it of 1 ms or of 100
ms, whatever the gaps.

A plain quota does not do it: credit refills while the worker communicates, so that at 10 % phases
of 1 ms run three times too fast. A busy idle-priority process that eats the credit (a stationary
duty cycle) does not either: the kernel refuses quotas below 1 ms, so a phase of 0.5 ms meets at
best one hold or none, and took 1.3 to 1.7 times too long.

So the loop is closed: `limiter` reads each host's CPU clock, `ledger` says what it owes for that, a
gate holds it back for as long, and only while it would compute. With cgroup rights the gate is a
quota of a millisecond or more, granted by hand by a real-time process on the host's core: the
kernel itself stops the host at the end of each grant, however long nobody looked, and sleeping
threads are left alone. An ordinary user's is SIGSTOP and SIGCONT from one process at normal
priority with a short scheduling slice; every thread wakes for each, which costs the worker some per
cent. `benchmarks/cpu_shares.md` has the figures of both and of what was not chosen. Where a worker
counts its work, `efficiency` turns CPU time into work. `warmth` keeps the cores awake meanwhile,
and `tally` tells the guard what hosts were due and lost.
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
