"""Training loop of ranks in lockstep: fetch, prepare, train, evaluate, stop."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import partial

from laggard.core.emulated_drive import Drive
from laggard.core.span_schema import Phase
from laggard.workloads.balancing.balancer import BatchSharing
from laggard.workloads.coordination.progress_reporter import write_part
from laggard.workloads.coordination.start_barrier import (
    BarrierOpening,
    EvaluationVerdict,
    Reason,
    StartBarrier,
    evaluation_barrier,
)
from laggard.workloads.coordination.stopping import is_last_by_steps, is_last_by_time
from laggard.workloads.datasets.partition import Partition, Share
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.models.model_state import TrainedSoFar, save_checkpoint, save_state
from laggard.workloads.output.worker_output import (
    WorkerOutputDir,
    append_line,
    read_lines,
    write_whole,
)
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.strategies.base.strategy import DividesModel, Strategy
from laggard.workloads.tracing.batch_loader import BatchLoader
from laggard.workloads.tracing.recorder import Recorder

PROGRESS_NS = 100_000_000
"""Shortest time between two lines of `progress.jsonl`."""


@dataclass(frozen=True)
class Ending:
    """End of a training.

    Attributes:
        last_step: number of the last step, from 0.
        samples: number of samples that all ranks trained on.
        stopped_by: `accuracy`, `steps`, `time` or `walltime`.
        open_ns: end of the last evaluation, CLOCK_MONOTONIC.
    """

    last_step: int
    samples: int
    stopped_by: str
    open_ns: int


@dataclass
class Loop:
    """Training of one rank in lockstep with all others.

    Attributes:
        plan: plan of the worker.
        batch_loader: loader of the rank's samples.
        partition: assignment of samples to ranks.
        strategy: strategy that trains on the samples.
        recorder: trace of the rank.
        start_barrier: barrier at which the ranks wait for evaluations.
        drive: drive of the host, for checkpoints; None if it is not limited.
        sharing: division of each batch among the ranks; None for even shares.
        first_step: step of the whole training with which this run of it begins. Its own records
            count from 0.
    """

    plan: WorkerPlan
    batch_loader: BatchLoader
    partition: Partition
    strategy: Strategy
    recorder: Recorder
    start_barrier: StartBarrier
    drive: Drive | None = None
    sharing: BatchSharing | None = None
    first_step: int = 0
    output_dir: WorkerOutputDir = field(init=False)
    _evaluations: int = 0
    _progress_ns: int = 0
    _zero_ns: int = 0

    def __post_init__(self) -> None:
        self.output_dir = WorkerOutputDir(self.plan.output_path)

    def run(self, zero_ns: int) -> Ending:
        """Train from `zero_ns` (CLOCK_MONOTONIC) to the stopping rule."""
        rehearsal = self.batch_loader.rehearsal
        if rehearsal is not None:
            rehearsal.begin(self.first_step)
        step, begun_ns, due = self.first_step, zero_ns, False
        self._zero_ns = zero_ns
        while True:
            self._name_last_step(step, begun_ns - zero_ns)
            self._step(step, begun_ns)
            last = self.start_barrier.last_step()
            reason = last[1] if last is not None and step >= last[0] else Reason.NONE
            if step == self.partition.last_step:
                reason = reason or Reason.STEPS
            begun_ns = time.monotonic_ns()
            # An evaluation that is due waits for a step after which there is a model to evaluate.
            due = due or self.partition.evaluates_after(step, self._evaluate_every)
            if reason or (due and self._can_evaluate(step)):
                due = False
                opening = self._evaluate(step, final=bool(reason))
                begun_ns = self.recorder.end_phase()
                if reason or opening.verdict is EvaluationVerdict.STOP:
                    by = (
                        "accuracy"
                        if opening.verdict is EvaluationVerdict.STOP
                        else reason.name.lower()
                    )
                    if rehearsal is not None:
                        rehearsal.close()
                    return Ending(
                        step - self.first_step, self._samples_through(step), by, opening.open_ns
                    )
            step += 1

    @property
    def _evaluate_every(self) -> int:
        return self.plan.workload.evaluate_every or self.partition.samples

    def _samples_through(self, step: int) -> int:
        """Return the samples that all ranks have trained on in this run when a step is finished."""
        before = self.partition.samples_through(self.first_step - 1) if self.first_step else 0
        return self.partition.samples_through(step) - before

    def _name_last_step(self, step: int, elapsed_ns: int) -> None:
        """Name the last step, if this is rank 0 and the stopping rule applies.

        The step is one in which all ranks synchronize, since no rank can be past it already.
        """
        if self.plan.rank != 0 or self.start_barrier.last_step() is not None:
            return
        elapsed_s = (elapsed_ns - self.start_barrier.paused_ns) / 1e9 / self.plan.dilation
        if is_last_by_steps(step, self.plan.workload.stop):
            self.start_barrier.name_last_step(step, Reason.STEPS)
        elif is_last_by_time(elapsed_s, self.plan.workload.stop):
            self.start_barrier.name_last_step(self._next_synchronization(step), Reason.TIME)
        elif self.start_barrier.is_stop_requested:
            self.start_barrier.name_last_step(self._next_synchronization(step), Reason.WALLTIME)

    def _next_synchronization(self, step: int) -> int:
        """Return the step that ends with a synchronization, or the last one with samples."""
        synchronization, end = self.strategy.next_synchronization(step), self.partition.last_step
        return synchronization if end is None else min(synchronization, end)

    def _step(self, step: int, begun_ns: int) -> None:
        recorder, share = self.recorder, self._take_share(step)
        recorder.begin_step(step - self.first_step, begun_ns)
        batch, share = self.batch_loader.take_step(step, share, begun_ns)
        result = self.strategy.step(step, batch, share)
        if recorder.meter is not None:
            recorder.meter.finish(len(batch.labels))
        every = self.plan.workload.checkpoint_every
        if self.plan.rank == 0 and every is not None and (step + 1) % every == 0:
            self._checkpoint(step)
        if self.sharing is not None:
            self.sharing.finish(
                step,
                len(batch.labels),
                synchronizes=self.strategy.next_synchronization(step) == step,
            )
        samples = len(share.indices) if result.samples is None else result.samples
        recorder.end_step(result, samples, share.batch_size)
        if self.plan.rank == 0:
            # A rank without the last block of a divided model does not know the loss.
            self._report_progress(step, None if result.samples == 0 else result.loss)

    def _take_share(self, step: int) -> Share:
        """Return this rank's samples in a step."""
        if isinstance(self.strategy, DividesModel):
            return self.strategy.pick_share(step, self.partition)
        if self.sharing is not None:
            return self.sharing.share(step)
        return self.partition.share(step, self.plan.rank)

    def _report_progress(self, step: int, loss: float | None) -> None:
        now_ns = time.monotonic_ns()
        if now_ns - self._progress_ns >= PROGRESS_NS:
            self._progress_ns = now_ns
            line = {
                "time_ns": now_ns,
                "step": step - self.first_step,
                "samples": self._samples_through(step),
                "loss": loss,
            }
            append_line(self.output_dir.progress, line)

    def _can_evaluate(self, step: int) -> bool:
        """Return whether there is a model to evaluate after a step.

        It is a model that all ranks share, or the ranks' parts, which the evaluator can read only
        on its own machine.
        """
        return not self.plan.relayed or self.strategy.next_synchronization(step) == step

    def _evaluate(self, step: int, *, final: bool) -> BarrierOpening:
        """Wait while the evaluator evaluates the model.

        After a synchronization all ranks have one model, which rank 0 writes. Otherwise each rank
        writes its own, and the evaluator takes the mean.
        """
        number, barrier = self._evaluations, evaluation_barrier(self._evaluations)
        self._evaluations += 1
        # The `evaluate` phase includes writing the model: all of it is outside the training's
        # clock.
        arrival_ns = self.recorder.enter(Phase.EVALUATE, group=number)
        if isinstance(self.strategy, DividesModel):
            self.strategy.write_model(partial(self.output_dir.part, number))
        elif self.strategy.next_synchronization(step) != step:
            state = FlatState(self.strategy.model).read()
            write_part(self.output_dir, number, self.plan.rank, state, self.strategy.weight)
        elif self.plan.rank == 0:
            save_state(self.strategy.model.state_dict(), self.output_dir.snapshot(number))
        if self.plan.rank == 0:
            if final and (self._is_fetched or self._lacks_checkpoint(step)):
                self._write_checkpoint(step)
            self.start_barrier.request_evaluation(step, final=final)
        self.start_barrier.arrive(self.plan.rank, barrier, arrival_ns)
        return self.start_barrier.wait(barrier)

    @property
    def _is_fetched(self) -> bool:
        """Return whether a last checkpoint is fetched from another machine."""
        return self.plan.relayed and not isinstance(self.strategy, DividesModel)

    def write_done(self, zero_ns: int, ending: Ending) -> None:
        """Write `done.json`; all evaluations are outside the training's clock, the last one too."""
        evaluations, paused_ns = (
            read_lines(self.output_dir.evaluations),
            self.start_barrier.paused_ns,
        )
        training_ns = ending.open_ns - zero_ns - paused_ns
        done = {
            "stopped_by": ending.stopped_by,
            "steps": ending.last_step + 1,
            "samples": ending.samples,
            "accuracy": evaluations[-1]["accuracy"],
            "evaluations": len(evaluations),
            "zero_ns": zero_ns,
            "end_ns": ending.open_ns,
            "paused_ns": paused_ns,
            "makespan_s": training_ns / 1e9 / self.plan.dilation,
        }
        write_whole(self.output_dir.done, json.dumps(done).encode())

    def _lacks_checkpoint(self, step: int) -> bool:
        """Return whether the workload asks for checkpoints, and this step has written none."""
        every = self.plan.workload.checkpoint_every
        return every is not None and (step + 1) % every != 0

    def _checkpoint(self, step: int) -> None:
        """Write a checkpoint within the step; the others wait at their next collective."""
        begun_ns = self.recorder.enter(Phase.CHECKPOINT)
        size_bytes = self._write_checkpoint(step)
        if self.drive is not None:
            self.drive.transfer("write", size_bytes, 1, begun_ns, self.recorder.signal_alive)
        self.recorder.enter(Phase.OTHER)

    def _write_checkpoint(self, step: int) -> int:
        """Write the state from which training could be resumed; return its size in bytes."""
        elapsed_ns = time.monotonic_ns() - self._zero_ns - self.start_barrier.paused_ns
        so_far = TrainedSoFar(step, elapsed_ns / 1e9 / self.plan.dilation)
        save_checkpoint(
            self.output_dir.checkpoint, so_far, self.strategy.model, self.strategy.optimizer
        )
        return self.output_dir.checkpoint.stat().st_size
