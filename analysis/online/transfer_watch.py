"""Watches the collectives of a run in lockstep, and names the link that holds them up."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from laggard.analysis.columns import LinkColumns
from laggard.analysis.detect import FOLDED_SHARE
from laggard.analysis.intervals import LEAST_RATIO
from laggard.analysis.load import RankHost
from laggard.analysis.online.alarm_book import AlarmBook, Place, latest
from laggard.analysis.online.collectives import Collectives
from laggard.analysis.online.drift import MachineDrift
from laggard.analysis.online.link_memory import LinkMemory
from laggard.analysis.online.series import Moment, SeriesBank
from laggard.analysis.online.steps import StepRows
from laggard.run_schema import Alarm

SLOW = Place("network", "dynamic")
_LOOK_EVERY = 10
_TRIES = 5
_S = 1e-9


@dataclass
class TransferWatch:
    """Slow transfers of all ranks together.

    Args:
        hosts: where each rank runs.
        book: where alarms are raised.
        bank: one series.
    """

    hosts: tuple[RankHost, ...]
    book: AlarmBook
    bank: SeriesBank
    seconds: float = 0.0
    _steps: int = 0
    _tries: int = 0
    _excess_s: float = 0.0
    _collectives: Collectives = field(default_factory=Collectives)

    def __post_init__(self) -> None:
        self._links = LinkMemory(self.hosts)

    def take_links(self, samples: LinkColumns) -> None:
        """TCP samples, later than those before."""
        self._links.take(samples)

    def take(
        self, rows: StepRows, compute: SeriesBank, drift: MachineDrift, *, counts: bool
    ) -> list[Alarm]:
        """One step of all ranks.

        Args:
            rows: what they did.
            compute: theirs: a starved host reduces slowly, which is no fault of the network.
            drift: of the machine under them.
            counts: whether transfers would matter if they were slow, given what they took so far.
        """
        self._steps += 1
        self._links.note_step(latest(rows).end_ns)
        took_s = sum(rows.group_s)
        if took_s <= 0.0:
            return []
        self.seconds += took_s
        relative = self._collectives.relative(rows.groups, rows.group_s)
        now, at = latest(rows), np.zeros(1, dtype=np.int64)
        when = np.array([[now.step, now.start_ns, now.end_ns]])
        turned = self.bank.enter(at, np.array([relative]), np.ones(1), when, 0.0, rows.warm_up[:1])
        if not self.bank.rising[0] and not rows.warm_up.all():
            self._collectives.learn(rows.groups, rows.group_s)
        if not len(turned):
            return self._name()
        if self.bank.open[0]:
            return self._end()
        return self._begin(rows, took_s / max(relative, 1e-9), compute, drift) if counts else []

    def compare(self, first: Moment, rows: StepRows) -> list[Alarm]:
        """Links that are slower than the fastest class of links all along, and those that are not
        any more; nothing is asked while transfers are slow.
        """
        if SLOW in self.book:
            return []
        slow, steps = self._links.lasting()
        usual_s = self.seconds / max(self._steps, 1)
        told: list[Alarm] = []
        for link in slow.links:
            gained_s = (link.busy_s - link.needed_s) / steps
            ratio = (
                usual_s / max(usual_s - gained_s, usual_s / link.slowdown, 1e-9)
                if usual_s > 0
                else 1.0
            )
            place = Place("network", "deterministic", tiers=link.tiers)
            if ratio >= LEAST_RATIO and place not in self.book:
                told.append(
                    self.book.begin(
                        place, math.log(link.slowdown), link.confidence, first, rows, link.ends
                    )
                )
        still = {link.tiers for link in slow.links}
        for place in self.book.places(
            lambda each: each.tiers is not None and each.tiers not in still
        ):
            told += self.book.end(place, latest(rows))
        return told

    def _begin(
        self, rows: StepRows, usual_s: float, compute: SeriesBank, drift: MachineDrift
    ) -> list[Alarm]:
        length = int(self.bank.starting[0])
        if (compute.rising & (compute.starting >= FOLDED_SHARE * length)).any():
            excess_s = max(sum(rows.group_s) - usual_s, 1e-9)
            looked = self._steps % _LOOK_EVERY == 0
            if not looked or not self._links.any_changed(self._links.ended_ns(length), excess_s):
                return []
        rise = self.bank.rise(0, drift.since(length))
        if rise is None:
            return []
        self._tries, self._excess_s = 0, max(usual_s * math.expm1(rise.level), 1e-9)
        link = self._links.named(rise.first.start_ns, self._excess_s)
        return [self.book.begin(SLOW, rise.level, rise.confidence, rise.first, rows, link)]

    def _end(self) -> list[Alarm]:
        alarm, fall = self.book.of(SLOW), self.bank.fall(0)
        if alarm is not None:
            self._links.note_slow(round(alarm.since_s / _S), fall.last.end_ns)
        return self.book.end(SLOW, fall.last, fall.level)

    def _name(self) -> list[Alarm]:
        """Looks again for the link of slow transfers, now that there are more samples."""
        alarm = self.book.of(SLOW)
        if (
            alarm is None
            or alarm.link is not None
            or self._tries >= _TRIES
            or self._steps % _LOOK_EVERY
        ):
            return []
        self._tries += 1
        link = self._links.named(round(alarm.since_s / _S), self._excess_s)
        return [] if link is None else [self.book.name(SLOW, link)]
