"""Requests that wait at one device or server, and the blocks that it has computed of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from laggard.core.serving.request_order import (
    RequestOrderName,
    WaitingRequest,
    choose_request,
)


@dataclass
class BlockJob:
    """Blocks of one request that are computed at one place.

    Attributes:
        number: number of the request.
        arrived_s: time at which they arrived there.
        deadline_s: time at which the request must be answered; infinite without a deadline.
        expected_s: expected seconds of each block, at least one.
        done: number of blocks that are computed.
        paused_s: end of its last block.
        pace: seconds of its last block as a part of those expected.
    """

    number: int
    arrived_s: float
    deadline_s: float
    expected_s: Sequence[float]
    done: int = 0
    paused_s: float = field(init=False)
    pace: float = 1.0

    def __post_init__(self) -> None:
        self.paused_s = self.arrived_s
        self._alone_s = sum(self.expected_s)
        self._left_s = self._alone_s

    @property
    def left_s(self) -> float:
        """Return the expected seconds of the blocks that are left."""
        return self._left_s

    @property
    def is_done(self) -> bool:
        """Return whether all blocks are computed."""
        return self.done == len(self.expected_s)

    def finish_block(self, took_s: float, now_s: float) -> None:
        """Note that the next block was computed, and how long it took."""
        expected_s = self.expected_s[self.done]
        self.done += 1
        self._left_s = sum(self.expected_s[self.done :])
        self.paused_s = now_s
        if expected_s > 0:
            self.pace = took_s / expected_s

    def view(self) -> WaitingRequest:
        """Return what the order of requests depends on."""
        return WaitingRequest(
            self.number,
            self.arrived_s,
            self.deadline_s,
            self._alone_s,
            self._left_s,
            self.paused_s,
            self.pace,
        )


class BlockQueue:
    """Jobs of one device or server, which computes one block at a time.

    Args:
        order: rule that decides at every border of blocks which job goes on.
    """

    def __init__(self, order: RequestOrderName = "fcfs") -> None:
        self._order = order
        self._jobs: dict[int, BlockJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def backlog_s(self) -> float:
        """Return the expected seconds of all that is left."""
        return sum(each.left_s for each in self._jobs.values())

    def add(self, job: BlockJob) -> None:
        """Add a job."""
        self._jobs[job.number] = job

    def choose(self, now_s: float) -> BlockJob | None:
        """Return the job whose next block comes now; None if none waits."""
        if not self._jobs:
            return None
        waiting = [each.view() for each in self._jobs.values()]
        return self._jobs[choose_request(self._order, waiting, now_s).number]

    def finish_block(self, job: BlockJob, took_s: float, now_s: float) -> bool:
        """Note that a job's next block was computed; return whether that was its last one."""
        job.finish_block(took_s, now_s)
        if job.is_done:
            del self._jobs[job.number]
        return job.is_done
