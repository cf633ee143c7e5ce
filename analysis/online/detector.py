"""The detector: told of one step after the other, it raises alarms and says when what they told of
is over.

What is slow, and against what, is defined as for finished runs (`intervals`, `reference`,
`detect`): 1.10 times a rank's own usual or, all along, the fastest device class's. What is
different is that it must not know the future: references are of the calm steps so far, and an
interval is told of after seven of its ten steps (`cusum`). What it holds does not grow with the
run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import LinkColumns
from laggard.analysis.detect import FOLDED_SHARE, LEAST_SHARE
from laggard.analysis.intervals import LEAST_RATIO, LEAST_STEPS
from laggard.analysis.load import RankHost
from laggard.analysis.online.alarm_book import AlarmBook, Place, latest
from laggard.analysis.online.cusum import steps_between_alarms
from laggard.analysis.online.drift import MachineDrift
from laggard.analysis.online.fleet import lags
from laggard.analysis.online.series import Moment, SeriesBank
from laggard.analysis.online.steps import StepRows
from laggard.analysis.online.transfer_watch import TransferWatch
from laggard.run_schema import Alarm, Family

FIRST_COMPARISON = 2 * LEAST_STEPS
_NEXT_COMPARISON = 1.5
_S = 1e-9


@dataclass
class Detector:
    """Watches one run.

    Args:
        hosts: where each rank runs.
        lockstep: whether all ranks take the same steps.
    """

    hosts: tuple[RankHost, ...]
    lockstep: bool = True
    _next_comparison: int = FIRST_COMPARISON
    _begin_ns: int | None = None
    _first_usual: Moment | None = None

    def __post_init__(self) -> None:
        world = len(self.hosts)
        moved = 1 if self.lockstep else world
        each = steps_between_alarms(2 * world + moved)
        self._book = AlarmBook(self.hosts)
        self._drift = MachineDrift(world)
        self._compute, self._storage = SeriesBank(world, each), SeriesBank(world, each)
        self._transfer = SeriesBank(moved, each)
        self._collectives = TransferWatch(self.hosts, self._book, self._transfer)

    def take_links(self, samples: LinkColumns) -> None:
        """TCP samples, later than those before; only they name links."""
        self._collectives.take_links(samples)

    def take(self, rows: StepRows) -> tuple[Alarm, ...]:
        """One step of some ranks.

        Args:
            rows: what they did; in lockstep of all, step by step.

        Returns:
            Alarms that were raised by it, that it ended, or whose link is known now.
        """
        if not len(rows.ranks):
            return ()
        if self._begin_ns is None:
            self._begin_ns = int(rows.when[:, 1].min())
        if self._first_usual is None and not rows.warm_up.all():
            self._first_usual = Moment(
                int(rows.when[:, 0].max()), int(rows.when[:, 1].min()), latest(rows).end_ns
            )
        told = [*self._take_work(rows), *self._take_transfers(rows)]
        if (
            int(np.median(self._compute.learnt)) >= self._next_comparison
            and self._first_usual is not None
        ):
            self._next_comparison = math.ceil(self._next_comparison * _NEXT_COMPARISON)
            told += self._compare(self._first_usual, rows)
        return tuple(told)

    def _take_work(self, rows: StepRows) -> list[Alarm]:
        at, compute = rows.ranks, self._compute
        drift = self._drift.feel(at, compute.ratios(at, rows.compute_s, rows.samples))
        told: list[Alarm] = []
        for rank in compute.enter(
            at, rows.compute_s, rows.samples, rows.when, drift, rows.warm_up
        ).tolist():
            told += self._turn("compute", compute, rank, rows)
        for rank in self._storage.enter(
            at, rows.storage_s, rows.samples, rows.when, 0.0, rows.warm_up
        ).tolist():
            told += self._turn("storage", self._storage, rank, rows)
        return told

    def _take_transfers(self, rows: StepRows) -> list[Alarm]:
        if self.lockstep:
            counts = self._is_worth(self._collectives.seconds, rows)
            return self._collectives.take(rows, self._compute, self._drift, counts=counts)
        bank, compute = self._transfer, self._compute
        ones = np.ones(len(rows.ranks))
        told: list[Alarm] = []
        for rank in bank.enter(
            rows.ranks, rows.transfer_s, ones, rows.when, 0.0, rows.warm_up
        ).tolist():
            starved = (
                compute.rising[rank]
                and compute.starting[rank] >= FOLDED_SHARE * bank.starting[rank]
            )
            if bank.open[rank] or not starved:
                told += self._turn("network", bank, rank, rows)
        return told

    def _turn(self, family: Family, series: SeriesBank, rank: int, rows: StepRows) -> list[Alarm]:
        """A series has come to where it may be slow, or as usual again."""
        place = Place(family, "dynamic", rank)
        if series.open[rank]:
            fall = series.fall(rank)
            return self._book.end(place, fall.last, fall.level)
        if not self._is_worth(float(series.seconds[rank]), rows):
            return []
        length = int(series.starting[rank])
        # From compute the drift is out, but it follows slowly: what came suddenly over all is not.
        rise = series.rise(
            rank, series.in_common(length) if family == "compute" else self._drift.since(length)
        )
        return (
            []
            if rise is None
            else [self._book.begin(place, rise.level, rise.confidence, rise.first, rows)]
        )

    def _is_worth(self, seconds: float, rows: StepRows) -> bool:
        """Whether so much is 1 % of the time since the first step."""
        assert self._begin_ns is not None
        return seconds >= LEAST_SHARE * (latest(rows).end_ns - self._begin_ns) * _S

    def _compare(self, first: Moment, rows: StepRows) -> list[Alarm]:
        """Who is slower than its equals all along, and who is not any more."""
        told: list[Alarm] = []
        families: tuple[tuple[Family, SeriesBank], ...] = (
            ("compute", self._compute),
            ("storage", self._storage),
        )
        for family, bank in families:
            for lag in lags(bank, self.hosts, storage=family == "storage"):
                place = Place(family, "deterministic", lag.rank)
                if (
                    lag.slow
                    and place not in self._book
                    and self._is_worth(float(bank.seconds[lag.rank]), rows)
                ):
                    told.append(self._book.begin(place, lag.level, lag.confidence, first, rows))
                elif place in self._book and lag.level < math.log(LEAST_RATIO):
                    told += self._book.end(place, latest(rows))
        return [*told, *self._collectives.compare(first, rows)] if self.lockstep else told
