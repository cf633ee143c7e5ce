"""The training loop of ranks that each take steps of their own: fetch, prepare, learn, until told
that it is over.

Nothing here stops for evaluations: whoever keeps the model writes snapshots of it, or every rank
gives its part of one, and they are evaluated while training goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from laggard.workloads.coordination.progress_reporter import ProgressReporter
from laggard.workloads.datasets.partition import Share
from laggard.workloads.strategies.base.strategy import AsyncStrategy
from laggard.workloads.tracing.batch_loader import BatchLoader
from laggard.workloads.tracing.recorder import Recorder


@dataclass(frozen=True)
class AsyncTrainingLoop:
    """One rank's training.

    Attributes:
        batch_loader: the way to its samples.
        share_of: the rank's own share of a step, which it is about to begin.
        strategy: how they are trained on.
        recorder: the trace.
        progress_reporter: what the rank tells the coordinator; None where a server keeps the model.
    """

    batch_loader: BatchLoader
    share_of: Callable[[int], Share]
    strategy: AsyncStrategy
    recorder: Recorder
    progress_reporter: ProgressReporter | None = None

    def run(self, zero_ns: int) -> int:
        """Train from `zero_ns` (CLOCK_MONOTONIC); returns how many steps this rank took."""
        begun_ns, taken = zero_ns, 0
        while (step := self.strategy.next_step) is not None:
            share = self.share_of(step)
            self.recorder.begin_step(step, begun_ns)
            batch = self.batch_loader.take(share, begun_ns)
            result = self.strategy.step(step, batch, share)
            if self.recorder.meter is not None:
                self.recorder.meter.finish(len(batch.labels))
            self.recorder.end_step(result, len(share.indices), share.batch_size)
            if self.progress_reporter is not None:
                self.progress_reporter.finish_step(len(share.indices) if result.applied else 0)
            begun_ns, taken = time.monotonic_ns(), taken + 1
        if self.progress_reporter is not None:
            self.progress_reporter.close()
        return taken
