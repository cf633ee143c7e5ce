"""Pools of worker processes that dask.distributed starts: on this machine, over SSH, in OAR jobs.

Messages of dask are pickles, which execute code when they are read. Therefore every connection is
encrypted, and both ends prove with a certificate of this pool that they belong to it.
"""

from __future__ import annotations

import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

from laggard.core.errors import InputError
from laggard.core.process.termination_signals import hold_signals

if TYPE_CHECKING:
    from distributed import Client

MAX_DEATHS = 3
"""Times that a task may end its worker process before it has failed."""

SETTINGS: Mapping[str, object] = {
    "distributed.comm.require-encryption": True,
    # A task that is computed when its process dies is suspected; one that waits is not.
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.scheduler.allowed-failures": MAX_DEATHS - 1,
    # Pages about the processes would be served without encryption.
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    "distributed.nanny.pre-spawn-environ": {
        "MALLOC_TRIM_THRESHOLD_": 65536,
        "OMP_NUM_THREADS": 1,
        "MKL_NUM_THREADS": 1,
        "OPENBLAS_NUM_THREADS": 1,
    },
}
"""Settings of dask that apply to every pool, whatever the user's own configuration has."""

EXTRA = "pip install 'laggard[cluster]'"


class WorkerPool(ABC):
    """Processes that compute tasks, each with one thread."""

    @property
    @abstractmethod
    def processes(self) -> int:
        """Return the expected number of processes."""

    @abstractmethod
    def open_client(self) -> AbstractContextManager[Client]:
        """Start the processes, and end them however the body of the `with` ends.

        Raises:
            InputError: dask.distributed is not installed.
            DeploymentError: the processes could not be started.
        """


@dataclass(frozen=True)
class LocalPool(WorkerPool):
    """Processes of this machine.

    Attributes:
        count: number of processes; None for one per core that this process may use.
    """

    count: int | None = None

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return self.count or len(os.sched_getaffinity(0))

    @contextmanager
    def open_client(self) -> Iterator[Client]:
        """Start the processes, and end them however the body of the `with` ends."""
        require_packages("distributed")
        import dask
        from distributed import Client, LocalCluster
        from distributed.security import Security

        security = Security.temporary()
        with ExitStack() as stack:
            stack.enter_context(dask.config.set(SETTINGS))
            stack.enter_context(silence_dask())
            # A terminal sends Ctrl-C to every process of its group; the parent ends the workers.
            with hold_signals([signal.SIGINT]):
                cluster = LocalCluster(
                    n_workers=self.processes,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    security=security,
                    silence_logs=logging.CRITICAL,
                    scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
                )
                stack.enter_context(cluster)
            yield stack.enter_context(Client(cluster))


@contextmanager
def silence_dask() -> Iterator[None]:
    """Keep dask's messages about its own processes out of the terminal, except with `-v`."""
    log = logging.getLogger("distributed")
    level = log.level
    if not logging.getLogger().isEnabledFor(logging.INFO):
        log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(level)


def require_packages(*names: str) -> None:
    """Require packages of the extra `cluster`.

    Raises:
        InputError: one is not installed.
    """
    for name in names:
        if find_spec(name) is None:
            raise InputError(
                f"{name} is not installed, and computes the cells that need no continuum — install"
                f" it: {EXTRA}"
            )
