"""Loop over tasks: dask.distributed computes them, and each result is recorded when it comes.

A worker process that dies costs nothing, since dask computes its task again in another one.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pydantic import JsonValue

from laggard.campaign.tasks.pools import MAX_DEATHS, WorkerPool
from laggard.campaign.tasks.registry import run_task
from laggard.core.errors import DeploymentError

if TYPE_CHECKING:
    from distributed import Client, Future

_TICK_S = 0.5
_WAITING_PER_WORKER = 2
"""Tasks that are handed to dask per process, so that none waits for this loop."""


@dataclass(frozen=True)
class TaskCall:
    """Task of one cell.

    Attributes:
        digest: digest of the cell.
        command: name of the command.
        values: values of its keys.
        folder: folder of the campaign file.
    """

    digest: str
    command: str
    values: Mapping[str, JsonValue]
    folder: Path


class TaskRecorder(Protocol):
    """Something that records tasks when they start and end."""

    def find_stop_reason(self) -> str | None:
        """Return why no further task may start; None if one may."""

    def start_task(self, digest: str) -> str:
        """Record that a task starts, and return the token of this attempt."""

    def end_task(self, digest: str, token: str, document: Mapping[str, object]) -> bool:
        """Record the document of an attempt, and return whether the task is tried again."""

    def tick(self) -> None:
        """Do what is done about once a second."""


def run_tasks(calls: Iterable[TaskCall], pool: WorkerPool, recorder: TaskRecorder) -> str | None:
    """Run tasks until all have ended or no further one may start.

    Returns:
        The reason why no further one may start; None if all have ended.

    Raises:
        InputError: dask.distributed is not installed.
        DeploymentError: the processes could not be started, or are all gone.
    """
    waiting = deque(calls)
    if not waiting:
        return None
    with pool.open_client() as client:
        return _TaskLoop(client, waiting, recorder, _WAITING_PER_WORKER * pool.processes).run()


@dataclass
class _TaskLoop:
    client: Client
    waiting: deque[TaskCall]
    recorder: TaskRecorder
    most: int
    pending: dict[Future, tuple[TaskCall, str]] = field(default_factory=dict)

    def run(self) -> str | None:
        stopped = self._submit()
        while self.pending:
            for future in self._wait():
                call, token = self.pending.pop(future)
                if self.recorder.end_task(call.digest, token, _get_document(future)):
                    self.waiting.append(call)
            stopped = stopped or self._submit()
        return stopped

    def _submit(self) -> str | None:
        """Hand tasks to dask, and return why no further one may start."""
        while self.waiting and len(self.pending) < self.most:
            stopped = self.recorder.find_stop_reason()
            if stopped is not None:
                return stopped
            call = self.waiting.popleft()
            token = self.recorder.start_task(call.digest)
            future = self.client.submit(
                run_task, call.command, dict(call.values), str(call.folder), key=token, pure=False
            )
            self.pending[future] = call, token
        return None

    def _wait(self) -> list[Future]:
        from distributed import wait

        while True:
            self.recorder.tick()
            try:
                return list(
                    wait(list(self.pending), timeout=_TICK_S, return_when="FIRST_COMPLETED").done
                )
            except TimeoutError:
                if self.client.status not in ("running", "newclient", "connecting"):
                    break
            except CancelledError:
                break
        raise DeploymentError(
            "the scheduler of the worker processes is gone — start the same command again, which"
            " goes on here"
        )


def _get_document(future: Future) -> Mapping[str, object]:
    """Return the document of a task that has ended, or one that says why there is none."""
    from distributed.scheduler import KilledWorker

    error = future.exception()
    if error is None:
        document: Mapping[str, object] = future.result()
        return document
    if isinstance(error, KilledWorker):
        reason = (
            f"the process that computed it died {MAX_DEATHS} times, as when memory is short — use"
            " fewer processes, with --processes"
        )
        return {"status": "failed", "error": reason}
    return {"status": "failed", "error": f"{type(error).__name__}: {error}"}
