"""Live detector: reads one step after the other, raises alarms and ends them.

The definition of slow is that of finished runs (`intervals`, `reference`, `series_causes`): 1.10
times a rank's own usual duration or, throughout the run, the fastest device class's. The detector
does not know the future, so it differs in two points. References use only the normal steps so far,
and an interval is reported after seven of its ten steps (`cusum`). Its memory does not grow with
the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.families import COMPUTE, LOCAL_FAMILIES, NETWORK, FamilySpec
from laggard.analysis.detection.intervals import MIN_RATIO, MIN_STEPS
from laggard.analysis.detection.online.alarm_book import AlarmBook, AlarmSubject, find_latest_step
from laggard.analysis.detection.online.cusum import compute_alarm_interval
from laggard.analysis.detection.online.fleet_comparison import compare_with_fleet
from laggard.analysis.detection.online.machine_drift import MachineDrift
from laggard.analysis.detection.online.series_bank import SeriesBank, StepInterval
from laggard.analysis.detection.online.step_rows import StepRows
from laggard.analysis.detection.online.transfer_monitor import TransferMonitor
from laggard.analysis.detection.series_causes import MERGE_OVERLAP_SHARE, MIN_MAKESPAN_SHARE
from laggard.analysis.tables.columns import LinkColumns
from laggard.analysis.tables.load_run import RankHost
from laggard.core.run_schema import Alarm

# Ranks are compared with the fleet after 20, 30, 45, ... steps.
FIRST_COMPARISON = 2 * MIN_STEPS
_NEXT_COMPARISON = 1.5
_S = 1e-9


@dataclass
class OnlineDetector:
    """Detector of one run.

    Args:
        hosts: host of every rank.
        lockstep: whether all ranks take the same steps.
        teams: ranks that do the same work; all ranks together without it.
    """

    hosts: tuple[RankHost, ...]
    lockstep: bool = True
    teams: tuple[tuple[int, ...], ...] = ()
    _next_comparison: int = FIRST_COMPARISON
    _begin_ns: int | None = None
    _first_normal: StepInterval | None = None

    def __post_init__(self) -> None:
        world = len(self.hosts)
        moved = 1 if self.lockstep else world
        # All series of the run share one budget of false alarms.
        each = compute_alarm_interval(len(LOCAL_FAMILIES) * world + moved)
        self._alarms = AlarmBook(self.hosts)
        self._drift = MachineDrift(world)
        self._local = {family.name: SeriesBank(world, each) for family in LOCAL_FAMILIES}
        self._compute = self._local[COMPUTE.name]
        self._transfer = SeriesBank(moved, each)
        self._collectives = TransferMonitor(self.hosts, self._alarms, self._transfer)

    def update_links(self, samples: LinkColumns) -> None:
        """Add TCP samples that are later than all earlier ones; only they can name links."""
        self._collectives.update_links(samples)

    def update(self, rows: StepRows) -> tuple[Alarm, ...]:
        """Process one step of some ranks.

        Args:
            rows: work of the ranks; in lockstep of all ranks, step by step.

        Returns:
            Alarms that this step raised or ended, or whose link became known.
        """
        if not len(rows.ranks):
            return ()
        if self._begin_ns is None:
            self._begin_ns = int(rows.step_times[:, 1].min())
        if self._first_normal is None and not rows.warm_up.all():
            self._first_normal = StepInterval(
                int(rows.step_times[:, 0].max()),
                int(rows.step_times[:, 1].min()),
                find_latest_step(rows).end_ns,
            )
        changed = [*self._update_work(rows), *self._update_transfers(rows)]
        if (
            int(np.median(self._compute.learned_steps)) >= self._next_comparison
            and self._first_normal is not None
        ):
            self._next_comparison = math.ceil(self._next_comparison * _NEXT_COMPARISON)
            changed += self._compare(self._first_normal, rows)
        return tuple(changed)

    def _update_work(self, rows: StepRows) -> list[Alarm]:
        at, compute_s = rows.ranks, rows.local_s[COMPUTE.name]
        drift = self._drift.update(at, self._compute.log_ratios(at, compute_s, rows.samples))
        changed: list[Alarm] = []
        for family in LOCAL_FAMILIES:
            bank, moved = self._local[family.name], drift if family.uses_processor else 0.0
            for rank in bank.update(
                at, rows.local_s[family.name], rows.samples, rows.step_times, moved, rows.warm_up
            ).tolist():
                changed += self._handle_transition(family, bank, rank, rows)
        return changed

    def _update_transfers(self, rows: StepRows) -> list[Alarm]:
        if self.lockstep:
            counts = self._is_significant(self._collectives.seconds, rows)
            return self._collectives.update(rows, self._compute, self._drift, counts=counts)
        bank, compute = self._transfer, self._compute
        ones = np.ones(len(rows.ranks))
        changed: list[Alarm] = []
        for rank in bank.update(
            rows.ranks, rows.transfer_s, ones, rows.step_times, 0.0, rows.warm_up
        ).tolist():
            starved = (
                compute.is_rising[rank]
                and compute.steps_since_rise[rank]
                >= MERGE_OVERLAP_SHARE * bank.steps_since_rise[rank]
            )
            if bank.open[rank] or not starved:
                changed += self._handle_transition(NETWORK, bank, rank, rows)
        return changed

    def _handle_transition(
        self, family: FamilySpec, series: SeriesBank, rank: int, rows: StepRows
    ) -> list[Alarm]:
        """Start or end the alarm of a series whose sum has reached a threshold."""
        subject = AlarmSubject(family.name, "dynamic", rank)
        if series.open[rank]:
            fall = series.close_slowdown(rank)
            return self._alarms.end_alarm(subject, fall.last, fall.level)
        if not self._is_significant(float(series.seconds[rank]), rows):
            return []
        length = int(series.steps_since_rise[rank])
        # The drift is subtracted from compute already, but it is smoothed: a sudden slowdown of
        # all ranks is not in it yet.
        rise = series.open_slowdown(
            rank,
            series.shared_slowdown(length)
            if family.uses_processor
            else self._drift.change_since(length),
        )
        return (
            []
            if rise is None
            else [self._alarms.raise_alarm(subject, rise.level, rise.confidence, rise.first, rows)]
        )

    def _is_significant(self, seconds: float, rows: StepRows) -> bool:
        """Return whether `seconds` are at least 1 % of the time since the first step."""
        assert self._begin_ns is not None
        return seconds >= MIN_MAKESPAN_SHARE * (find_latest_step(rows).end_ns - self._begin_ns) * _S

    def _compare(self, first: StepInterval, rows: StepRows) -> list[Alarm]:
        """Return changed alarms of ranks that are slower than the fleet or no longer slower."""
        changed: list[Alarm] = []
        for family in LOCAL_FAMILIES:
            bank = self._local[family.name]
            for lag in compare_with_fleet(bank, self.hosts, family, self.teams):
                subject = AlarmSubject(family.name, "deterministic", lag.rank)
                if (
                    lag.slow
                    and subject not in self._alarms
                    and self._is_significant(float(bank.seconds[lag.rank]), rows)
                ):
                    changed.append(
                        self._alarms.raise_alarm(subject, lag.level, lag.confidence, first, rows)
                    )
                elif subject in self._alarms and lag.level < math.log(MIN_RATIO):
                    changed += self._alarms.end_alarm(subject, find_latest_step(rows))
        return (
            [*changed, *self._collectives.compare_links(first, rows)] if self.lockstep else changed
        )
