"""Recorder of a worker's phases, at a cost of one or two microseconds per phase.

The main lane has no gaps: entering a phase ends the previous one at the same time. Times are
CLOCK_MONOTONIC ns of this machine. `collect.py` makes them virtual and relative to the first step.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Self

from laggard.core.span_schema import (
    COMPUTE_PHASES,
    NO_GROUP,
    NO_PEER,
    WARM_UP_STEPS,
    Flag,
    Lane,
    Phase,
)
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.compute_meter import ComputeMeter
from laggard.workloads.tracing.heartbeat import Heartbeat
from laggard.workloads.tracing.row_types import SPAN_ROW, STEP_ROW
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.tracing.stream import RowStream

SHORT_OTHER_NS = 20_000
"""Shortest `other` span that is recorded; a shorter one extends the span before it."""

_OWN = tuple(
    phase.code
    for phase in Phase
    if phase not in (Phase.COMM, Phase.CHECKPOINT, Phase.EVALUATE, Phase.REHEARSE)
)
_COMPUTE = frozenset(phase.code for phase in COMPUTE_PHASES)


class Recorder:
    """Trace of one rank.

    Args:
        output_dir: folder that the trace is streamed to.
        rank: number of the rank.
        world_size: number of ranks.
        life: number of processes that this rank had before.
        warm_up_steps: number of first steps whose spans are marked as warm-up.

    Attributes:
        spent_ns: time spent in each phase so far, by phase code.
        meter: meter of the CPU time of computing phases; None if it is not measured.
    """

    def __init__(
        self,
        output_dir: WorkerOutputDir,
        rank: int,
        world_size: int,
        life: int = 0,
        warm_up_steps: int = WARM_UP_STEPS,
    ) -> None:
        self.meter: ComputeMeter | None = None
        self.spent_ns = [0] * len(Phase)
        self._rank, self._warm_up_steps = rank, warm_up_steps
        self._spans = RowStream(output_dir.spans(rank, life), SPAN_ROW)
        self._steps = RowStream(output_dir.steps(rank, life), STEP_ROW)
        self._heartbeat = Heartbeat(output_dir.heartbeat, rank, world_size)
        self._buckets: list[tuple[int, int, int]] = []
        self._background_sends: deque[tuple[int, int, int, int]] = deque()
        self._step = 0
        self._first_step: int | None = None
        self._flags = int(Flag.WARM_UP)
        self._sequence = 0
        self._phase: int | None = None
        self._start_ns = 0
        self._step_start_ns = 0
        self._described = (NO_GROUP, 0, 0, NO_PEER)

    @property
    def own_ns(self) -> int:
        """Time of own work: no communication, checkpoint, evaluation or wait for old samples."""
        return sum(self.spent_ns[code] for code in _OWN)

    def begin_step(self, step: int, at_ns: int | None = None) -> int:
        """Begin a step; the next phases belong to it.

        Args:
            step: number of the step, from 0.
            at_ns: time at which the step began; now if None.

        Returns:
            The time at which the step began.
        """
        now_ns = self.end_phase(at_ns)
        self._write_buckets()
        self._write_background_sends()
        self._step, self._sequence, self._step_start_ns = step, 0, now_ns
        self._first_step = step if self._first_step is None else self._first_step
        self._flags = int(Flag.WARM_UP) if step - self._first_step < self._warm_up_steps else 0
        return now_ns

    def enter(
        self,
        phase: Phase,
        *,
        group: int = NO_GROUP,
        peer: int = NO_PEER,
        payload_bytes: int = 0,
        work: int = 0,
        at_ns: int | None = None,
    ) -> int:
        """End the open phase and begin another.

        Args:
            phase: phase that begins.
            group: number of the collective within the step, or of the evaluation.
            peer: rank at the other end, if there is exactly one.
            payload_bytes: bytes that the phase transfers.
            work: number of samples that the phase works on.
            at_ns: time at which the phase began; now if None.

        Returns:
            The time at which the phase began.
        """
        now_ns = self.end_phase(at_ns)
        self._phase, self._start_ns, self._described = (
            phase.code,
            now_ns,
            (group, payload_bytes, work, peer),
        )
        self._heartbeat.beat(self._step, self._phase, now_ns)
        if self.meter is not None and self._phase in _COMPUTE:
            self.meter.begin()
        return now_ns

    def attribute(self, peer: int, payload_bytes: int) -> None:
        """Set the peer and the bytes of the open phase, which were unknown when it began."""
        group, _, work, _ = self._described
        self._described = group, payload_bytes, work, peer

    def signal_alive(self) -> None:
        """Signal that the rank is alive within a long phase."""
        if self._phase is not None:
            self._heartbeat.beat(self._step, self._phase, time.monotonic_ns())

    def end_phase(self, at_ns: int | None = None) -> int:
        """End the open phase, if there is one, and return the time of its end."""
        now_ns = time.monotonic_ns() if at_ns is None else at_ns
        if self._phase is not None:
            if self.meter is not None and self._phase in _COMPUTE:
                self.meter.end()
            self._write(self._phase, self._start_ns, now_ns - self._start_ns)
            self._phase = None
        return now_ns

    def _write(self, phase: int, start_ns: int, dur_ns: int) -> None:
        spans, (group, payload_bytes, work, peer) = self._spans, self._described
        self.spent_ns[phase] += dur_ns
        if phase == Phase.OTHER.code and dur_ns < SHORT_OTHER_NS and self._sequence and spans.count:
            spans.rows["dur_ns"][spans.count - 1] += dur_ns
            return
        spans.append(
            (self._step, self._rank, Lane.MAIN, phase, self._sequence, start_ns, dur_ns, group,
             peer, payload_bytes,
             work, self._flags)
        )  # fmt: skip
        self._sequence += 1

    def bucket(self, start_ns: int, end_ns: int, payload_bytes: int) -> None:
        """Record one gradient bucket on the lane of buckets; any thread may call this."""
        self._buckets.append((start_ns, end_ns, payload_bytes))

    def record_background_send(
        self, start_ns: int, end_ns: int, peer: int, payload_bytes: int
    ) -> None:
        """Record a send of a background thread on its own lane; that thread may call this."""
        self._background_sends.append((start_ns, end_ns, peer, payload_bytes))

    def end_step(self, result: StepResult, samples: int, batch_size: int) -> None:
        """Record the result of the step, and write the trace if a second has passed.

        Args:
            result: result of the step.
            samples: number of samples of this rank.
            batch_size: number of samples of all ranks.
        """
        now_ns = time.monotonic_ns()
        used, dropped = (samples, 0) if result.applied else (0, samples)
        self._steps.append(
            (self._step, self._rank, self._step_start_ns, now_ns, result.loss, used, batch_size,
             result.staleness,
             dropped, result.skipped, result.read_version, result.applied_version,
             result.waited_for)
        )  # fmt: skip
        self._spans.flush_if_due(now_ns)
        self._steps.flush_if_due(now_ns)

    def _write_buckets(self) -> None:
        # Callbacks may come in any order, so number the buckets of the step by their start.
        buckets, self._buckets = sorted(self._buckets), []
        for group, (start_ns, end_ns, payload_bytes) in enumerate(buckets):
            self._spans.append(
                (self._step, self._rank, Lane.BUCKETS, Phase.COMM.code, group, start_ns,
                 end_ns - start_ns, group,
                 NO_PEER, payload_bytes, 0, self._flags)
            )  # fmt: skip

    def _write_background_sends(self) -> None:
        # Other threads may append meanwhile, so take only the entries that are there now.
        for sequence in range(len(self._background_sends)):
            start_ns, end_ns, peer, payload_bytes = self._background_sends.popleft()
            self._spans.append(
                (self._step, self._rank, Lane.BACKGROUND, Phase.COMM.code, sequence, start_ns,
                 end_ns - start_ns, NO_GROUP,
                 peer, payload_bytes, 0, self._flags)
            )  # fmt: skip

    def close(self) -> None:
        """End the open phase, write all rows and close the files."""
        self.end_phase()
        self._write_buckets()
        self._write_background_sends()
        self._spans.close()
        self._steps.close()
        self._heartbeat.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
