"""Generator of runs as other tools record them: groups, pipelines, stalls and few steps.

Every rank has a program for a step: work, collectives of some ranks, and messages. The programs
are simulated operation by operation, which gives the spans and the makespan.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from laggard.analysis.formats.import_run.imported_run import (
    NS_PER_S,
    RankStep,
    build_imported_run,
    build_rank_host,
)
from laggard.analysis.formats.import_run.main_lane import TraceSpan
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import TraceOrigin
from laggard.core.span_schema import Flag, Phase

Layout = Literal["data parallel", "groups", "pipeline"]
SlowPlace = Literal["compute", "host gap", "garbage collection", "one long step", "none"]

FORWARD_S, BACKWARD_S, OPTIMIZER_S, TRANSFER_S = 0.005, 0.010, 0.001, 0.0002
MICROBATCHES, STAGE_FACTOR = 4, 1.5
"""Number of microbatches of a pipeline, and the work of its second stage relative to the others."""
_MAX_OPERATIONS = 6 * MICROBATCHES + 4
GC_PERIOD = 3
"""Garbage is collected in every third step, from the second on."""


@dataclass(frozen=True)
class TraceJob:
    """Training to simulate.

    Attributes:
        layout: arrangement of the ranks: data parallel, tensor-parallel pairs with data
            parallelism across them, or pipelines with two or more replicas.
        ranks: number of ranks, a multiple of 4.
        steps: number of steps.
        slow: what makes the slow rank slow.
        magnitude: ratio of the slow rank's local work, with the stall, to the usual work.
        slow_rank: number of the slow rank.
        noise: standard deviation of log durations.
        seed: seed of the noise; it does not depend on the slow place.
    """

    layout: Layout
    ranks: int
    steps: int
    slow: SlowPlace
    magnitude: float
    slow_rank: int
    noise: float
    seed: int

    @property
    def slow_steps(self) -> tuple[int, ...]:
        """Return the steps in which the slow rank is slow."""
        if self.slow == "none":
            return ()
        if self.slow == "one long step":
            return (self.steps // 2,)
        if self.slow == "garbage collection":
            return tuple(range(1, self.steps, GC_PERIOD))
        return tuple(range(self.steps))

    @property
    def stages(self) -> int:
        """Return the number of pipeline stages."""
        return (2 if self.ranks < 8 else 4) if self.layout == "pipeline" else 1

    def stage(self, rank: int) -> int:
        """Return the stage of a rank."""
        return rank // (self.ranks // self.stages)

    def healthy(self) -> TraceJob:
        """Return the same training, with the same noise, in which nothing is slow."""
        return replace(self, slow="none")


@dataclass(frozen=True)
class _Work:
    phase: Phase
    seconds: float


@dataclass(frozen=True)
class _Meeting:
    number: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class _StageMessage:
    """A send or a receive, by the number of its post."""

    number: int
    is_send: bool


_Operation = _Work | _Meeting | _StageMessage


def generate_trace(job: TraceJob) -> RunData:
    """Simulate a training and return it as the import of a trace would."""
    hosts = tuple(
        build_rank_host(
            rank,
            f"rank-{rank}",
            tier=f"stage {job.stage(rank)}" if job.stages > 1 else "",
            device_class="cpu",
        )
        for rank in range(job.ranks)
    )
    stages = tuple(job.stage(rank) for rank in range(job.ranks)) if job.stages > 1 else ()
    origin = TraceOrigin(format="kineto", path="generated", stages=stages)
    steps = _simulate(job)[0]
    return build_imported_run(Path("generated"), origin, steps, hosts, job.layout)


def simulate_trace_s(job: TraceJob) -> float:
    """Return the makespan of a training in seconds."""
    return float(_simulate(job)[1].max())


def _simulate(job: TraceJob) -> tuple[list[RankStep], FloatArray]:
    random = np.random.default_rng(job.seed)
    now = np.zeros(job.ranks)
    steps: list[RankStep] = []
    for step in range(job.steps):
        noise = np.exp(random.normal(0.0, job.noise, (job.ranks, _MAX_OPERATIONS)))
        begin = now.copy()
        programs = [list(_list_operations(job, rank)) for rank in range(job.ranks)]
        is_slow = step in job.slow_steps
        if is_slow and job.slow == "host gap":
            now[job.slow_rank] += (job.magnitude - 1.0) * _get_local_s(job)
        spans = _StepSimulation(job, programs, noise, is_slow=is_slow).run(now)
        steps += [
            RankStep(step, rank, _to_ns(begin[rank]), _to_ns(now[rank]), tuple(own))
            for rank, own in enumerate(spans)
        ]
    return steps, now


def _get_local_s(job: TraceJob) -> float:
    """Return the usual seconds of a rank's work in a step."""
    passes = MICROBATCHES if job.layout == "pipeline" else 1
    return passes * (FORWARD_S + BACKWARD_S) + OPTIMIZER_S


class _StepSimulation:
    """Simulation of one step.

    Args:
        job: the training.
        programs: operations of every rank.
        noise: factors on the work of every rank, by place.
        is_slow: whether the slow rank is slow in this step.
    """

    def __init__(
        self,
        job: TraceJob,
        programs: Sequence[list[_Operation]],
        noise: FloatArray,
        *,
        is_slow: bool,
    ) -> None:
        self._job = job
        self._programs = programs
        self._noise = noise
        self._computes_slowly = is_slow and job.slow in ("compute", "one long step")
        self._collects_garbage = is_slow and job.slow == "garbage collection"
        self._arrivals: dict[int, dict[int, float]] = {}
        self._posts: dict[int, float] = {}
        self._spans: list[list[TraceSpan]] = [[] for _ in programs]

    def run(self, now: FloatArray) -> list[list[TraceSpan]]:
        """Advance the ranks' clocks to the end of the step, and return their spans."""
        at = [0] * len(self._programs)
        while any(place < len(own) for place, own in zip(at, self._programs, strict=True)):
            for rank, own in enumerate(self._programs):
                while at[rank] < len(own):
                    end = self._perform(rank, at[rank], own[at[rank]], float(now[rank]))
                    if end is None:
                        break
                    now[rank] = end
                    at[rank] += 1
        return self._spans

    def _perform(self, rank: int, place: int, operation: _Operation, at_s: float) -> float | None:
        """Return the end of an operation, or None if its rank still has to wait for others."""
        if isinstance(operation, _Work):
            return self._work(rank, place, operation, at_s)
        if isinstance(operation, _Meeting):
            return self._meet(rank, operation, at_s)
        return self._exchange(rank, operation, at_s)

    def _work(self, rank: int, place: int, work: _Work, at_s: float) -> float:
        job = self._job
        factor = job.magnitude if self._computes_slowly and rank == job.slow_rank else 1.0
        end = at_s + work.seconds * factor * float(self._noise[rank, place])
        self._add(rank, work.phase, at_s, end)
        if self._collects_garbage and (rank, place) == (job.slow_rank, 0):
            collected = end + (job.magnitude - 1.0) * _get_local_s(job)
            self._add(rank, Phase.OTHER, end, collected)
            return collected
        return end

    def _meet(self, rank: int, meeting: _Meeting, at_s: float) -> float | None:
        arrivals = self._arrivals.setdefault(meeting.number, {})
        arrivals.setdefault(rank, at_s)
        if len(arrivals) < len(meeting.ranks):
            return None
        end = max(arrivals.values()) + TRANSFER_S
        self._add(rank, Phase.COMM, at_s, end, meeting.number)
        return end

    def _exchange(self, rank: int, message: _StageMessage, at_s: float) -> float | None:
        if message.is_send:
            self._posts[message.number] = at_s
            self._add(rank, Phase.COMM, at_s, at_s, message.number, Flag.ASYNC)
            return at_s
        if message.number not in self._posts:
            return None
        end = max(at_s, self._posts[message.number]) + TRANSFER_S
        self._add(rank, Phase.COMM, at_s, end, message.number + 1)
        return end

    def _add(
        self,
        rank: int,
        phase: Phase,
        start_s: float,
        end_s: float,
        group: int = -1,
        flags: Flag = Flag.NONE,
    ) -> None:
        span = TraceSpan(phase, _to_ns(start_s), _to_ns(end_s), group=group, flags=flags)
        self._spans[rank].append(span)


def _to_ns(seconds: float) -> int:
    return round(float(seconds) * NS_PER_S)


def _list_operations(job: TraceJob, rank: int) -> Iterator[_Operation]:
    """Yield the operations of a rank in each step."""
    everyone = tuple(range(job.ranks))
    if job.layout == "pipeline":
        replicas = job.ranks // job.stages
        yield from _list_stage_operations(job, rank)
        mates = tuple(range(rank - rank % replicas, rank - rank % replicas + replicas))
        yield _Meeting(job.stage(rank), mates)
    elif job.layout == "groups":
        pair = (rank - rank % 2, rank - rank % 2 + 1)
        across = tuple(range(rank % 2, job.ranks, 2))
        yield _Work(Phase.FORWARD, FORWARD_S)
        yield _Meeting(rank // 2, pair)
        yield _Work(Phase.BACKWARD, BACKWARD_S)
        yield _Meeting(job.ranks + rank % 2, across)
    else:
        yield _Work(Phase.FORWARD, FORWARD_S)
        yield _Work(Phase.BACKWARD, BACKWARD_S)
        yield _Meeting(0, everyone)
    yield _Work(Phase.OPTIMIZER, OPTIMIZER_S)


def _list_stage_operations(job: TraceJob, rank: int) -> Iterator[_Operation]:
    """Yield one forward, one backward of a stage; the second stage does more than the others."""
    stage, last, replicas = job.stage(rank), job.stages - 1, job.ranks // job.stages
    factor = STAGE_FACTOR if stage == 1 else 1.0
    warm = min(last - stage, MICROBATCHES)

    def message(
        sender: int, direction: int, number: int, *, is_send: bool
    ) -> Iterator[_StageMessage]:
        receiver = sender + direction * replicas
        if 0 <= sender < job.ranks and 0 <= receiver < job.ranks:
            channel = 2 * sender + (direction > 0)
            yield _StageMessage(job.stages + 2 * (channel * MICROBATCHES + number), is_send)

    def forward(number: int) -> Iterator[_Operation]:
        yield from message(rank - replicas, 1, number, is_send=False)
        yield _Work(Phase.FORWARD, FORWARD_S * factor)
        yield from message(rank, 1, number, is_send=True)

    def backward(number: int) -> Iterator[_Operation]:
        yield from message(rank + replicas, -1, number, is_send=False)
        yield _Work(Phase.BACKWARD, BACKWARD_S * factor)
        yield from message(rank, -1, number, is_send=True)

    for number in range(warm):
        yield from forward(number)
    for number in range(MICROBATCHES):
        if warm + number < MICROBATCHES:
            yield from forward(warm + number)
        yield from backward(number)
