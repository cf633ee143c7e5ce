"""Pools of worker processes on other machines: over SSH, or in jobs of OAR.

The processes import Laggard and read the analyzed files at the same paths as here.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.campaign.tasks.pools import SETTINGS, WorkerPool, require_packages, silence_dask
from laggard.core.errors import DeploymentError, InputError
from laggard.layers_services.machine import Access

if TYPE_CHECKING:
    from distributed import Client

_SCHEDULER = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
_NO_PAGES = "export DASK_DISTRIBUTED__WORKER__HTTP__ROUTES='[]'"
_IDLE = "5 minutes"
"""Time without tasks after which processes over SSH end, as when the campaign was killed."""

_MEMORY_OF_JOB = "4GiB"
"""Memory of one process of an OAR job, which has one core; a process that needs more is ended."""


@dataclass(frozen=True)
class SshPool(WorkerPool):
    """Processes on the user's own machines, of which the first has the scheduler too.

    Attributes:
        machines: SSH access to the machines; their keys are in the user's known-hosts file.
        per_machine: number of processes of each machine; None for one per core.
    """

    machines: tuple[Access, ...]
    per_machine: int | None = None

    @property
    def processes(self) -> int:
        """Return the expected number of processes, which assumes eight cores per machine."""
        return len(self.machines) * (self.per_machine or 8)

    @contextmanager
    def open_client(self) -> Iterator[Client]:
        """Start the processes, and end them however the body of the `with` ends."""
        require_packages("distributed", "asyncssh")
        import asyncssh
        import dask
        from distributed import Client, SSHCluster
        from distributed.security import Security

        security = Security.temporary()
        certificate = f".laggard-{secrets.token_hex(8)}.pem"
        with ExitStack() as stack:
            idle = {"distributed.scheduler.idle-timeout": _IDLE}
            settings = {**SETTINGS, **_use_certificate(certificate), **idle}
            stack.enter_context(dask.config.set(settings))
            stack.enter_context(silence_dask())
            stack.callback(self._remove, certificate)
            try:
                # A file, since the arguments of a process can be read by every user.
                text = f"{security.tls_client_cert}{security.tls_client_key}"
                cores = self._on_all(f"umask 077 && cat > {certificate} && nproc", text)
                counts = [self.per_machine or int(each) for each in cores]
                workers = [a for a, n in zip(self.machines, counts, strict=True) for _ in range(n)]
                hosts = [self.machines[0], *workers]
                cluster = SSHCluster(
                    [each.address for each in hosts],
                    connect_options=[to_connect_options(each) for each in hosts],
                    scheduler_options={**_SCHEDULER, "protocol": "tls://"},
                    worker_options={"protocol": "tls://", "nthreads": 1},
                    security=security,
                )
            except (asyncssh.Error, OSError, RuntimeError, ValueError) as error:
                raise DeploymentError(
                    f"the processes on the machines of the inventory could not be started: {error}"
                    " — check `ssh` to each machine, that its key is in your known-hosts file, and"
                    " that Laggard with its extra `cluster` is at the same path there"
                ) from error
            stack.enter_context(cluster)
            yield stack.enter_context(Client(cluster))

    def _remove(self, certificate: str) -> None:
        """Remove the certificate, which is of no use after this call."""
        import asyncssh

        with suppress(asyncssh.Error, OSError):
            self._on_all(f"rm -f {certificate}", "")

    def _on_all(self, command: str, text: str) -> Sequence[str]:
        """Run a command on every machine, and return what each one printed."""
        return asyncio.run(_run_on_all(self.machines, command, text))


@dataclass(frozen=True)
class OarPool(WorkerPool):
    """Processes in jobs of OAR, one core each, as on a frontend of Grid'5000.

    Attributes:
        count: number of jobs.
        folder: folder that the nodes share, for the certificate of the processes.
        walltime: `HH:MM:SS` of each job.
        queue: OAR queue.
        project: project to charge.
        job_types: additional job types.
    """

    count: int
    folder: Path
    walltime: str = "01:00:00"
    queue: str | None = None
    project: str | None = None
    job_types: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return self.count

    @contextmanager
    def open_client(self) -> Iterator[Client]:
        """Submit the jobs, and end them however the body of the `with` ends."""
        require_packages("distributed", "dask_jobqueue")
        if shutil.which("oarsub") is None:
            raise InputError(
                "oarsub is not on this machine, and makes the jobs of --on g5k — start the campaign"
                " on a frontend of Grid'5000"
            )
        import dask
        from dask_jobqueue import OARCluster
        from distributed import Client
        from distributed.security import Security

        with ExitStack() as stack:
            certificate = stack.enter_context(_write_certificate(self.folder))
            settings = {**SETTINGS, **_use_certificate(str(certificate))}
            stack.enter_context(dask.config.set(settings))
            stack.enter_context(silence_dask())
            cluster = OARCluster(
                cores=1,
                processes=1,
                memory=_MEMORY_OF_JOB,
                memory_per_core_property_name="not_applicable",
                walltime=self.walltime,
                queue=self.queue,
                project=self.project,
                job_extra_directives=[f"-t {each}" for each in self.job_types],
                security=Security(),
                scheduler_options=dict(_SCHEDULER),
                job_script_prologue=[_NO_PAGES],
            )
            stack.enter_context(cluster)
            cluster.scale(jobs=self.count)
            yield stack.enter_context(Client(cluster))


@contextmanager
def _write_certificate(folder: Path) -> Iterator[Path]:
    """Write a new certificate and its key to a file that only this user can read."""
    from distributed.security import Security

    security = Security.temporary()
    path = folder / f".laggard-{secrets.token_hex(8)}.pem"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w", encoding="ascii") as stream:  # noqa: PTH123 - an open descriptor
            stream.write(f"{security.tls_client_cert}{security.tls_client_key}")
        yield path
    finally:
        path.unlink(missing_ok=True)


def to_connect_options(access: Access) -> dict[str, object]:
    """Return the access as options of `asyncssh.connect`; unknown host keys are refused."""
    options: dict[str, object] = {"username": access.user, "port": access.port}
    if access.key is not None:
        options["client_keys"] = [str(access.key)]
    if access.jumps_over:
        options["tunnel"] = access.jumps_over
    return options


def _use_certificate(path: str) -> Mapping[str, object]:
    """Return the settings of processes whose certificate and key are in a file."""
    keys = {
        f"distributed.comm.tls.{role}.{part}": path
        for role in ("scheduler", "worker", "client")
        for part in ("cert", "key")
    }
    return {
        "distributed.comm.tls.ca-file": path,
        **keys,
    }


async def _run_on_all(machines: Sequence[Access], command: str, text: str) -> list[str]:
    import asyncssh

    async def run(access: Access) -> str:
        async with asyncssh.connect(access.address, **to_connect_options(access)) as connection:
            done = await connection.run(command, input=text, check=True)
            return str(done.stdout).strip()

    return list(await asyncio.gather(*map(run, machines)))
