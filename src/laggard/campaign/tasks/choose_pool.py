"""Choice of the processes that compute tasks, from the testbed and its options."""

from __future__ import annotations

from pathlib import Path

from laggard.campaign.tasks.pools import LocalPool, WorkerPool
from laggard.core.errors import InputError
from laggard.remote.testbeds.g5k import G5kTestbed
from laggard.remote.testbeds.remote_testbed import RemoteTestbed
from laggard.remote.testbeds.ssh import SshTestbed

_UNUSED = ("reservation", "env_name", "kavlan", "jobs")
"""Options of Grid'5000 that have no meaning for jobs of processes."""


def choose_pool(testbed: RemoteTestbed | None, processes: int | None) -> WorkerPool:
    """Return the processes of this machine, of an inventory's machines, or of OAR jobs.

    Args:
        testbed: testbed with its options; None for this machine.
        processes: number of processes: of each machine, or OAR jobs; None for the default.

    Raises:
        InputError: the options do not suit processes.
    """
    if testbed is None:
        return LocalPool(processes)
    from laggard.campaign.tasks.remote_pools import OarPool, SshPool

    if isinstance(testbed, SshTestbed):
        return SshPool(testbed.list_accesses(), processes)
    if not isinstance(testbed, G5kTestbed) or processes is None:
        raise InputError(
            f"--on {testbed.name}: the number of jobs is missing, each of one core — give it with"
            " --processes"
        )
    options = testbed.reservation
    for name in _UNUSED:
        if getattr(options, name, None):
            raise InputError(
                f"--{name.rstrip('s').replace('_', '-')} is for runs of scenarios, and this"
                " campaign runs none — omit it"
            )
    given = {
        name: value
        for name in ("walltime", "queue", "project", "job_types")
        if (value := getattr(options, name, None))
    }
    return OarPool(processes, Path.home(), **given)
