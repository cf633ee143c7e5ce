"""Training loop of asynchronous ranks: fetch, prepare, train, until the training is over.

The loop does not stop for evaluations. The server, or every rank for its own part, writes
snapshots of the model, and they are evaluated while training continues.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from laggard.core.span_schema import Phase
from laggard.workloads.coordination.progress_reporter import ProgressReporter
from laggard.workloads.datasets.partition import Share
from laggard.workloads.strategies.base.strategy import AsyncStrategy
from laggard.workloads.tracing.batch_loader import BatchLoader
from laggard.workloads.tracing.recorder import Recorder


@dataclass(frozen=True)
class AsyncTrainingLoop:
    """Asynchronous training of one rank.

    Attributes:
        batch_loader: loader of the rank's samples.
        share_of: function that returns the rank's share of a step, called when the step begins.
        strategy: strategy that trains on the samples.
        recorder: trace of the rank.
        progress_reporter: reporter to the training coordinator; None if a server keeps the model.
    """

    batch_loader: BatchLoader
    share_of: Callable[[int], Share]
    strategy: AsyncStrategy
    recorder: Recorder
    progress_reporter: ProgressReporter | None = None

    def run(self, zero_ns: int, asked_ns: int | None = None) -> int:
        """Train until the strategy has no next step and return the number of steps taken.

        Args:
            zero_ns: start of the first step, CLOCK_MONOTONIC.
            asked_ns: time until which the first step waited for the server to ask for it.
        """
        begun_ns, taken = zero_ns, 0
        while (step := self.strategy.next_step) is not None:
            share = self.share_of(step)
            self.recorder.begin_step(step, begun_ns)
            if asked_ns is not None:
                self.recorder.enter(Phase.COMM, at_ns=begun_ns)
                begun_ns, asked_ns = asked_ns, None
            batch, share = self.batch_loader.take_step(step, share, begun_ns)
            result = self.strategy.step(step, batch, share)
            if self.recorder.meter is not None and not result.is_metered:
                self.recorder.meter.finish(len(batch.labels))
            self.recorder.end_step(result, len(share.indices), share.batch_size)
            if self.progress_reporter is not None:
                self.progress_reporter.finish_step(len(share.indices) if result.applied else 0)
            # A step begins where the last one ended, so the trace has no gaps.
            begun_ns, taken = time.monotonic_ns(), taken + 1
        if self.progress_reporter is not None:
            self.progress_reporter.close()
        return taken
