"""Live monitor of a lockstep run's collectives; it also names the link that delays them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from laggard.analysis.detection.intervals import MIN_RATIO
from laggard.analysis.detection.online.alarm_book import AlarmBook, AlarmSubject, find_latest_step
from laggard.analysis.detection.online.link_history import LinkHistory
from laggard.analysis.detection.online.machine_drift import MachineDrift
from laggard.analysis.detection.online.series_bank import SeriesBank, StepInterval
from laggard.analysis.detection.online.step_rows import StepRows
from laggard.analysis.detection.series_causes import MERGE_OVERLAP_SHARE
from laggard.analysis.tables.columns import LinkColumns
from laggard.analysis.tables.load_run import RankHost
from laggard.core.run_schema import Alarm

SLOW_TRANSFERS = AlarmSubject("network", "dynamic")
# The link that delays slow transfers is searched every ten steps, at most five times per alarm.
_CHECK_EVERY = 10
_MAX_TRIES = 5
_S = 1e-9


_KEPT = 100


class CollectiveMedians:
    """Running medians of every collective of a step, by its number."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}

    def compute_relative(self, groups: Sequence[int], seconds: Sequence[float]) -> float:
        """Return the duration of a step's collectives relative to their usual one.

        It is 0 if the step has no collective, and 1 if none of them is known yet.
        """
        known = [
            (took, self._seconds[group])
            for group, took in zip(groups, seconds, strict=True)
            if group in self._seconds
        ]
        if not known:
            return 1.0 if groups else 0.0
        usual = sum(median(before) for _, before in known)
        return sum(took for took, _ in known) / usual if usual > 0 else 1.0

    def add_normal_step(self, groups: Sequence[int], seconds: Sequence[float]) -> None:
        """Add a step whose collectives were not slow."""
        for group, took in zip(groups, seconds, strict=True):
            self._seconds.setdefault(group, deque(maxlen=_KEPT)).append(took)


@dataclass
class TransferMonitor:
    """Monitor of the transfers of all ranks together.

    Args:
        hosts: host of every rank.
        book: book in which alarms are raised.
        bank: bank with a single series.
        seconds: total seconds of transfers so far.
    """

    hosts: tuple[RankHost, ...]
    book: AlarmBook
    bank: SeriesBank
    seconds: float = 0.0
    _steps: int = 0
    _tries: int = 0
    _excess_s: float = 0.0
    _collectives: CollectiveMedians = field(default_factory=CollectiveMedians)

    def __post_init__(self) -> None:
        self._links = LinkHistory(self.hosts)

    def update_links(self, samples: LinkColumns) -> None:
        """Add TCP samples that are later than all earlier ones."""
        self._links.update(samples)

    def update(
        self, rows: StepRows, compute: SeriesBank, drift: MachineDrift, *, counts: bool
    ) -> list[Alarm]:
        """Process one step of all ranks and return the alarms that changed.

        Args:
            rows: work of the ranks.
            compute: compute series of the ranks; a starved host reduces slowly, which is no fault
                of the network.
            drift: drift of the machine under the ranks.
            counts: whether transfers take enough of the run for their slowness to matter.
        """
        self._steps += 1
        self._links.record_step(find_latest_step(rows).end_ns)
        took_s = sum(rows.group_s)
        if took_s <= 0.0:
            return []
        self.seconds += took_s
        relative = self._collectives.compute_relative(rows.groups, rows.group_s)
        now, at = find_latest_step(rows), np.zeros(1, dtype=np.int64)
        step_times = np.array([[now.step, now.start_ns, now.end_ns]])
        turned = self.bank.update(
            at, np.array([relative]), np.ones(1), step_times, 0.0, rows.warm_up[:1]
        )
        if not self.bank.is_rising[0] and not rows.warm_up.all():
            self._collectives.add_normal_step(rows.groups, rows.group_s)
        if not len(turned):
            return self._name_link()
        if self.bank.open[0]:
            return self._end_alarm()
        return (
            self._raise_alarm(rows, took_s / max(relative, 1e-9), compute, drift) if counts else []
        )

    def compare_links(self, first: StepInterval, rows: StepRows) -> list[Alarm]:
        """Return changed alarms of links that are slow throughout the run or no longer slow.

        Nothing is examined while transfers are slow.
        """
        if SLOW_TRANSFERS in self.book:
            return []
        slow, steps = self._links.find_persistently_slow()
        usual_s = self.seconds / max(self._steps, 1)
        changed: list[Alarm] = []
        for link in slow.links:
            gained_s = (link.busy_s - link.needed_s) / steps
            ratio = (
                usual_s / max(usual_s - gained_s, usual_s / link.slowdown, 1e-9)
                if usual_s > 0
                else 1.0
            )
            subject = AlarmSubject("network", "deterministic", tiers=link.tiers)
            if ratio >= MIN_RATIO and subject not in self.book:
                changed.append(
                    self.book.raise_alarm(
                        subject, math.log(link.slowdown), link.confidence, first, rows, link.ends
                    )
                )
        still = {link.tiers for link in slow.links}
        for subject in self.book.list_open(
            lambda each: each.tiers is not None and each.tiers not in still
        ):
            changed += self.book.end_alarm(subject, find_latest_step(rows))
        return changed

    def _raise_alarm(
        self, rows: StepRows, usual_s: float, compute: SeriesBank, drift: MachineDrift
    ) -> list[Alarm]:
        length = int(self.bank.steps_since_rise[0])
        if (compute.is_rising & (compute.steps_since_rise >= MERGE_OVERLAP_SHARE * length)).any():
            excess_s = max(sum(rows.group_s) - usual_s, 1e-9)
            looked = self._steps % _CHECK_EVERY == 0
            if not looked or not self._links.has_changed_link(
                self._links.find_end_ns(length), excess_s
            ):
                return []
        rise = self.bank.open_slowdown(0, drift.change_since(length))
        if rise is None:
            return []
        self._tries, self._excess_s = 0, max(usual_s * math.expm1(rise.level), 1e-9)
        link = self._links.find_changed_link(rise.first.start_ns, self._excess_s)
        return [
            self.book.raise_alarm(
                SLOW_TRANSFERS, rise.level, rise.confidence, rise.first, rows, link
            )
        ]

    def _end_alarm(self) -> list[Alarm]:
        alarm, fall = self.book.find(SLOW_TRANSFERS), self.bank.close_slowdown(0)
        if alarm is not None:
            self._links.record_slow_transfers(round(alarm.since_s / _S), fall.last.end_ns)
        return self.book.end_alarm(SLOW_TRANSFERS, fall.last, fall.level)

    def _name_link(self) -> list[Alarm]:
        """Search again for the link of slow transfers, since there are more samples now."""
        alarm = self.book.find(SLOW_TRANSFERS)
        if (
            alarm is None
            or alarm.link is not None
            or self._tries >= _MAX_TRIES
            or self._steps % _CHECK_EVERY
        ):
            return []
        self._tries += 1
        link = self._links.find_changed_link(round(alarm.since_s / _S), self._excess_s)
        return [] if link is None else [self.book.set_link(SLOW_TRANSFERS, link)]
