"""Execution of blocks at one node, one block at a time, in the order that its rule chooses."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from laggard.core.serving.block_queue import BlockJob, BlockQueue
from laggard.core.serving.request_order import RequestOrderName
from laggard.core.span_schema import Phase
from laggard.workloads.inference.cut_model import Tensors
from laggard.workloads.inference.served_model import ServedModel
from laggard.workloads.tracing.recorder import Recorder

MEMORY_S = 1.0
"""Seconds of computing after which a block counts a third in the pace."""


@dataclass(frozen=True)
class ServingClock:
    """Virtual time since the start, from the clock of this machine.

    Attributes:
        zero_ns: time of the start, CLOCK_MONOTONIC.
        dilation: real seconds per virtual second.
    """

    zero_ns: int
    dilation: float

    @property
    def now_s(self) -> float:
        """Return the present virtual time."""
        return (time.monotonic_ns() - self.zero_ns) / (1e9 * self.dilation)

    def to_ns(self, virtual_s: float) -> int:
        """Return the time of this machine at a virtual time."""
        return self.zero_ns + round(virtual_s * 1e9 * self.dilation)

    def to_real_ns(self, virtual_s: float) -> int:
        """Return a duration in nanoseconds of this machine."""
        return round(virtual_s * 1e9 * self.dilation)


@dataclass
class BlockWork:
    """Blocks of one request that this node computes.

    Attributes:
        step: number of the request in the trace.
        network: number of the network.
        first: number of the first block.
        last: number of the last block, plus 1.
        values: tensors that enter the next block.
        on_done: called with the output of the last block.
        computed_s: virtual seconds in which its blocks were computed.
    """

    step: int
    network: int
    first: int
    last: int
    values: Tensors
    on_done: Callable[[BlockWork], None]
    computed_s: float = 0.0


class BlockExecutor:
    """Blocks that a node computes.

    Args:
        models: networks of the node.
        share: virtual share of a core of its host.
        order: rule that decides which request goes on.
        recorder: trace of the node.
        clock: virtual time.
    """

    def __init__(
        self,
        models: Sequence[ServedModel],
        share: float,
        order: RequestOrderName,
        recorder: Recorder,
        clock: ServingClock,
    ) -> None:
        self._models, self._share = models, share
        self._queue = BlockQueue(order)
        self._works: dict[int, BlockWork] = {}
        self._recorder, self._clock = recorder, clock
        self._step: int | None = None
        self._expected_s = self._took_s = 0.0

    @property
    def pace(self) -> float:
        """Return the seconds of the last blocks as a multiple of the expected ones."""
        return self._took_s / self._expected_s if self._expected_s else 1.0

    @property
    def backlog_s(self) -> float:
        """Return the expected virtual seconds of all that is left."""
        return self._queue.backlog_s

    def add(self, work: BlockWork, arrived_s: float, deadline_s: float) -> None:
        """Add blocks.

        Args:
            work: the blocks, at least one.
            arrived_s: virtual time at which they arrived.
            deadline_s: virtual time until which the request must be answered.
        """
        seconds = self._models[work.network].block_s[work.first : work.last]
        expected_s = [each / self._share for each in seconds]
        self._queue.add(BlockJob(work.step, arrived_s, deadline_s, expected_s))
        self._works[work.step] = work

    def compute_block(self) -> bool:
        """Compute the next block; return whether there was one."""
        job = self._queue.choose(self._clock.now_s)
        if job is None:
            return False
        work = self._works[job.number]
        self._begin(work.step)
        number = work.first + job.done
        begun_s = self._clock.now_s
        self._recorder.enter(Phase.FORWARD, group=number, work=len(work.values[0]))
        with torch.inference_mode():
            work.values = self._models[work.network].model.compute(number, work.values)
        self._recorder.end_phase()
        took_s = self._clock.now_s - begun_s
        work.computed_s += took_s
        self._learn(job.expected_s[job.done], took_s)
        if self._queue.finish_block(job, took_s, begun_s + took_s):
            del self._works[job.number]
            work.on_done(work)
        return True

    def rest(self) -> None:
        """Note in the trace that the node has nothing to compute."""
        self._recorder.enter(Phase.OTHER)

    def _learn(self, expected_s: float, took_s: float) -> None:
        """Learn the pace of the last seconds: older blocks count less, by `MEMORY_S`."""
        kept = math.exp(-took_s / MEMORY_S)
        self._expected_s = kept * self._expected_s + expected_s
        self._took_s = kept * self._took_s + took_s

    def _begin(self, step: int) -> None:
        if step != self._step:
            self._recorder.begin_step(step)
            self._step = step
