"""Migration of samples on one rank: measures its steps, and decides with all others what moves.

Each exchange sends a few numbers from every rank to all, in a step in which all synchronize. Every
rank makes the same forecast from them. A slowness counts as lasting as long as it has lasted
already, so a short one moves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from laggard.core.span_schema import WARM_UP_STEPS, Phase
from laggard.workloads.balancing.balancer import (
    EXCHANGE_GROUP,
    MAX_WAIT_STEPS,
    AllGather,
    BalancerContext,
)
from laggard.workloads.balancing.cost_estimator import CONFIRMING_STEPS
from laggard.workloads.balancing.cost_monitor import CostMonitor, CostReport
from laggard.workloads.datasets.partition import Indices, Share
from laggard.workloads.migration.held_samples import HeldSamplesOrder, Move
from laggard.workloads.migration.plan_moves import (
    MigrationForecast,
    RankState,
    forecast_migration,
)
from laggard.workloads.migration.sample_mover import SampleMover
from laggard.workloads.specification.held_samples import HeldSamples
from laggard.workloads.specification.training import Stop

_COMM = Phase.COMM.code


@dataclass(frozen=True)
class TrainingSize:
    """Numbers on which the gain of a migration depends.

    Attributes:
        min_samples: fewest samples that the model can be trained on.
        sample_bytes: stored size of a sample.
        model_bytes: size of what a rank exchanges when all synchronize.
        stop: stopping rule of the training.
    """

    min_samples: int
    sample_bytes: float
    model_bytes: int
    stop: Stop


@dataclass
class Migrator:
    """Migration of one rank.

    Attributes:
        settings: section of the workload.
        context: properties of this rank.
        order: samples of all ranks and steps.
        mover: sender and receiver of samples; None if none move.
        size: numbers on which the gain depends.
        all_gather: function that sends this rank's numbers to all.
    """

    settings: HeldSamples
    context: BalancerContext
    order: HeldSamplesOrder
    mover: SampleMover | None
    size: TrainingSize
    all_gather: AllGather
    _monitor: CostMonitor = field(init=False)
    _moves: tuple[Move, ...] = ()
    _migrations: int = 0
    _next: int = WARM_UP_STEPS + CONFIRMING_STEPS
    _slow_since: int | None = None
    _comm_ns: int = 0
    _bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        self._monitor = CostMonitor(self.settings.window, self.context.recorder)

    def share(self, step: int) -> Share:
        """Return this rank's samples in a step."""
        return self.order.take_step(step, self.context.rank)

    def finish(self, step: int, computed: int, *, synchronizes: bool) -> None:
        """Process a finished step of this rank; see `Balancer.finish`."""
        self._monitor.observe(step, computed)
        self._observe_rate(step, synchronizes=synchronizes)
        if self.mover is not None and step >= self._next + (0 if synchronizes else MAX_WAIT_STEPS):
            self._exchange(step, self.mover)

    def _observe_rate(self, step: int, *, synchronizes: bool) -> None:
        """Keep the greatest rate at which models were exchanged: others include waits."""
        spent_ns = self.context.recorder.spent_ns[_COMM]
        took_ns, self._comm_ns = spent_ns - self._comm_ns, spent_ns
        if synchronizes and step >= WARM_UP_STEPS and took_ns > 0:
            self._bytes_per_s = max(self._bytes_per_s, self.size.model_bytes / took_ns * 1e9)

    def _exchange(self, step: int, mover: SampleMover) -> None:
        has_arrived = bool(self._moves) and mover.has_ended
        own = (*self._monitor.report.as_numbers, self._bytes_per_s, float(has_arrived))
        rows = self.all_gather(own, EXCHANGE_GROUP)
        self._next = step + self.settings.every
        if self._moves:
            if all(row[-1] for row in rows):
                mover.store_received()
                self.order.move(self._moves)
                self._moves = ()
            return
        reports = [CostReport.from_numbers(row[:4]) for row in rows]
        ranks = [
            RankState(held, report.cost, row[4])
            for held, report, row in zip(self.order.counts, reports, rows, strict=True)
            if report.cost is not None
        ]
        if len(ranks) == len(rows):
            self._consider(step, ranks, mover)

    def _consider(self, step: int, ranks: list[RankState], mover: SampleMover) -> None:
        """Begin a migration if it is worth its transfers."""
        forecast = forecast_migration(
            ranks,
            self.order.partition.batch_size,
            self.size.min_samples,
            self.size.sample_bytes,
        )
        if not forecast.counts or forecast.relative_gain < self.settings.min_gain:
            self._slow_since = None
            return
        if self._slow_since is None:
            self._slow_since = step
        steps = self._count_steps_left(step, self._slow_since)
        if not forecast.saves(steps):
            return
        self._migrations, self._slow_since = self._migrations + 1, None
        self._moves = tuple(
            Move(source, target, samples)
            for source, target, samples in self._choose_samples(forecast)
        )
        mover.start(self._moves, self._migrations)
        if self.context.rank == 0:  # all ranks make the same decision
            self.context.record_decision(step, self._describe(forecast, steps))

    def _choose_samples(self, forecast: MigrationForecast) -> Iterator[tuple[int, int, Indices]]:
        taken: dict[int, int] = {}
        for source, target, count in forecast.counts:
            before = taken.get(source, 0)
            yield source, target, self.order.choose(source, before + count)[before:]
            taken[source] = before + count

    def _count_steps_left(self, step: int, slow_since: int) -> int:
        """Return the steps for which the present speeds are expected to last."""
        lasts = step - slow_since + self.settings.every
        stop = self.size.stop
        if stop.steps is not None:
            lasts = min(lasts, stop.steps - step - 1)
        return lasts

    def _describe(self, forecast: MigrationForecast, steps: int) -> str:
        moved = sum(count for *_, count in forecast.counts)
        return (
            f"{moved} samples ({moved * self.size.sample_bytes / 1e3:.3g} kB) move to faster hosts:"
            f" the slowest rank's own work is to take {forecast.after_s * 1e3:.3g} ms instead of"
            f" {forecast.before_s * 1e3:.3g} ms, for {steps} steps at least, and the transfers"
            f" {forecast.transfer_s:.2g} s"
        )
