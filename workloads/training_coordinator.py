"""Coordinator of an asynchronous training without a server: evaluates the model and ends training.

The model of such a training is the mean of its ranks' models (Lian et al., NIPS 2017). The
coordinator requests a snapshot whenever the ranks together have trained on a fixed number of
samples. Each rank gives its part when its step is done and continues, so no rank waits. The
evaluation counts for the time at which the last part was given. It runs outside the continuum,
beside the training.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from laggard.workloads.coordination.progress_board import ProgressBoard
from laggard.workloads.coordination.progress_reporter import read_parts
from laggard.workloads.coordination.start_barrier import START_BARRIER, Reason, StartBarrier
from laggard.workloads.coordination.stopping import accuracy_reached
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.output.worker_output import WorkerOutputDir, append_line, write_whole
from laggard.workloads.plan import EvaluatorPlan
from laggard.workloads.tracing.step_result import UNKNOWN

LOGGER = logging.getLogger(__name__)
POLL_S = 0.01
PROGRESS_NS = 100_000_000

Judge = Callable[[torch.Tensor], float]


@dataclass
class TrainingCoordinator:
    """Coordinator of one training.

    Attributes:
        plan: plan of the evaluator.
        partition: number of samples of each step.
        judge: function that returns the accuracy of a model, given as one vector.
        dtype: type of the vector's numbers.
    """

    plan: EvaluatorPlan
    partition: Partition
    judge: Judge
    dtype: torch.dtype
    _accuracies: list[float] = field(default_factory=list)
    _progress_ns: int = 0

    def __post_init__(self) -> None:
        self._output_dir = WorkerOutputDir(self.plan.output_path)
        self._start_barrier = StartBarrier(self._output_dir.start_barrier, self.plan.world_size)
        self._progress_board = ProgressBoard(self._output_dir.progress_board, self.plan.world_size)
        self._last = (0, 0)

    def run(self) -> None:
        """Watch the training until it is over, evaluate the last snapshot and write `done.json`."""
        zero_ns = self._wait_for_start()
        reason = Reason.NONE
        while not reason:
            reason = self._over(zero_ns)
            if (
                not reason
                and self._progress_board.samples // self._every
                > self._progress_board.requested_snapshots
            ):
                reason = self._evaluate(self._progress_board.request_snapshot(), zero_ns)
            time.sleep(POLL_S)
        end_ns, samples = time.monotonic_ns(), self._progress_board.samples
        if reason is Reason.ACCURACY:
            # Training ended when the ranks gave the parts of the decisive snapshot, not after its
            # evaluation.
            samples, end_ns = self._last
        self._progress_board.end(reason)
        LOGGER.info("training stopped by %s after %d samples", reason.name.lower(), samples)
        self._end(reason, zero_ns, end_ns, samples)

    @property
    def _every(self) -> int:
        return self.plan.workload.evaluate_every or self.partition.samples

    def _wait_for_start(self) -> int:
        while self._start_barrier.announced[0] < START_BARRIER:
            time.sleep(POLL_S)
        return self._start_barrier.announced[1].open_ns

    def _over(self, zero_ns: int) -> Reason:
        """Report progress and return the reason to end training now; NONE if there is none."""
        self._report_progress()
        stop = self.plan.workload.stop
        # A requested stop waits for the first samples: a training without any has no result.
        if self._start_barrier.is_stop_requested and self._progress_board.samples:
            return self._start_barrier.is_stop_requested
        if (
            stop.steps is not None
            and self._progress_board.samples >= self.partition.samples_through(stop.steps - 1)
        ):
            return Reason.STEPS
        elapsed_s = (time.monotonic_ns() - zero_ns) / 1e9 / self.plan.dilation
        return Reason.TIME if stop.time_s is not None and elapsed_s >= stop.time_s else Reason.NONE

    def _evaluate(self, number: int, zero_ns: int) -> Reason:
        """Wait for all parts of a snapshot and evaluate it; return the reason to end, if any."""
        samples = self._progress_board.samples
        while (complete_ns := self._progress_board.complete_ns(number)) is None:
            reason = self._over(zero_ns)
            if reason:
                return reason
            time.sleep(POLL_S)
        self._judge(number, samples, complete_ns)
        reached = accuracy_reached(self._accuracies, self.plan.workload.stop)
        return Reason.ACCURACY if reached else Reason.NONE

    def _judge(self, number: int, samples: int, time_ns: int) -> None:
        whole = read_parts(self._output_dir, number, self._progress_board.present, self.dtype)
        self._accuracies.append(self.judge(whole))
        self._last = (samples, time_ns)
        step = samples // self.partition.batch_size - 1
        found = {"time_ns": time_ns, "step": step, "accuracy": self._accuracies[-1]}
        append_line(self._output_dir.progress, found)
        evaluation = {
            "evaluation": len(self._accuracies) - 1,
            "samples": samples,
            "rank": UNKNOWN,
            **found,
        }
        append_line(self._output_dir.evaluations, evaluation)
        LOGGER.info("after %d samples: accuracy %.4f", samples, self._accuracies[-1])

    def _report_progress(self) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._progress_ns >= PROGRESS_NS:
            self._progress_ns, samples = now_ns, self._progress_board.samples
            step = samples // self.partition.batch_size - 1
            append_line(
                self._output_dir.progress, {"time_ns": now_ns, "step": step, "samples": samples}
            )

    def _end(self, reason: Reason, zero_ns: int, end_ns: int, samples: int) -> None:
        """Wait for the ranks' last parts and write `done.json`.

        The last snapshot is evaluated unless an earlier evaluation has ended the training.
        """
        number = self._progress_board.requested_snapshots + 1
        while self._progress_board.complete_ns(number) is None:
            time.sleep(POLL_S)
        if reason is not Reason.ACCURACY:
            self._judge(number, samples, end_ns)
        done = {
            "stopped_by": reason.name.lower(),
            "steps": -(-samples // self.partition.batch_size),
            "samples": samples,
            "accuracy": self._accuracies[-1],
            "evaluations": len(self._accuracies),
            "zero_ns": zero_ns,
            "end_ns": end_ns,
            "paused_ns": 0,
            "makespan_s": (end_ns - zero_ns) / 1e9 / self.plan.dilation,
        }
        write_whole(self._output_dir.done, json.dumps(done).encode())
