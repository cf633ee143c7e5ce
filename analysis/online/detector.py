"""The detector: told of one step after the other, it raises alarms and says when what they told of is over.

What is slow, and against what, is defined as for finished runs (`intervals`, `reference`, `detect`): 1.10 times a rank's own usual or, all along, the fastest
device class's. What is different is that it must not know the future: references are of the calm steps so far, and an interval is told of after seven of
its ten steps (`cusum`). What it holds does not grow with the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from laggard.analysis.columns import LinkColumns
from laggard.analysis.detect import FOLDED_SHARE, LEAST_SHARE
from laggard.analysis.intervals import LEAST_RATIO, LEAST_STEPS
from laggard.analysis.load import RankHost
from laggard.analysis.online.collectives import Collectives
from laggard.analysis.online.cusum import steps_between_alarms
from laggard.analysis.online.drift import MachineDrift
from laggard.analysis.online.fleet import lags
from laggard.analysis.online.link_memory import LinkMemory
from laggard.analysis.online.series import SeriesBank
from laggard.analysis.online.steps import StepRows
from laggard.run_schema import Alarm, Family, Kind

FIRST_COMPARISON = 2 * LEAST_STEPS
_NEXT_COMPARISON = 1.5
_NAMING_EVERY = 10
_NAMING_TRIES = 5
_S = 1e-9

_Key = tuple[Family, Kind, int | tuple[str, str] | None]


@dataclass
class _Open:
    """An alarm that is not over: as last told, and the collective's excess and tries where its link is not known."""

    alarm: Alarm
    excess_s: float = 0.0
    tries: int = 0


@dataclass
class Detector:
    """Watches one run.

    Args:
        hosts: where each rank runs.
        lockstep: whether all ranks take the same steps.
    """

    hosts: tuple[RankHost, ...]
    lockstep: bool = True
    _open: dict[_Key, _Open] = field(default_factory=dict)
    _raised: int = 0
    _steps: int = 0
    _next_comparison: int = FIRST_COMPARISON
    _begin_ns: int | None = None
    _first_usual: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        world = len(self.hosts)
        moved = 1 if self.lockstep else world
        each = steps_between_alarms(2 * world + moved)
        self._compute, self._storage = SeriesBank(world, each), SeriesBank(world, each)
        self._transfer = SeriesBank(moved, each)
        self._drift = MachineDrift(world)
        self._collectives, self._links = Collectives(), LinkMemory(self.hosts)

    def take_links(self, samples: LinkColumns) -> None:
        """TCP samples, later than those before; only they name links."""
        self._links.take(samples)

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
            self._first_usual = (int(rows.when[:, 0].max()), int(rows.when[:, 1].min()))
        now = int(rows.when[:, 2].max())
        self._steps += 1
        self._links.note_step(now)
        told = [*self._take_work(rows), *self._take_transfers(rows), *self._name_links()]
        if int(np.median(self._compute.learnt)) >= self._next_comparison:
            self._next_comparison = math.ceil(self._next_comparison * _NEXT_COMPARISON)
            told += self._compare(rows)
        return tuple(told)

    @property
    def alarms(self) -> tuple[Alarm, ...]:
        """Alarms that are not over."""
        return tuple(each.alarm for each in self._open.values())

    def _take_work(self, rows: StepRows) -> list[Alarm]:
        at, bank = rows.ranks, self._compute
        drift = self._drift.feel(at, bank.ratios(at, rows.compute_s, rows.samples))
        told: list[Alarm] = []
        for family, series, seconds, common in (
            ("compute", bank, rows.compute_s, drift),
            ("storage", self._storage, rows.storage_s, 0.0),
        ):
            turned = series.enter(at, seconds, rows.samples, rows.when, common, rows.warm_up)
            for rank in turned.tolist():
                told += self._turn(family, series, rank, rows)  # type: ignore[arg-type]
        return told

    def _turn(self, family: Family, series: SeriesBank, rank: int, rows: StepRows) -> list[Alarm]:
        key: _Key = (family, "dynamic", rank)
        if series.open[rank]:
            fall = series.fall(rank)
            return self._end(key, fall.last.step, fall.last.end_ns, math.exp(fall.level))
        if not self._is_worth(series.seconds[rank], rows):
            return []
        length = int(series.starting[rank])
        # From compute the drift is out, but it follows slowly: what came suddenly over all is not.
        rise = series.rise(rank, series.in_common(length) if family == "compute" else self._drift.since(length))
        if rise is None:
            return []
        return [self._raise(key, rise.level, rise.confidence, (rise.first.step, rise.first.start_ns), rows)]

    def _is_worth(self, seconds: float, rows: StepRows) -> bool:
        """Whether a rank spends 1 % of its time on it."""
        assert self._begin_ns is not None
        return bool(seconds >= LEAST_SHARE * (int(rows.when[:, 2].max()) - self._begin_ns) * _S)

    def _take_transfers(self, rows: StepRows) -> list[Alarm]:
        bank = self._transfer
        if not self.lockstep:
            return self._take_own_transfers(rows)
        seconds = sum(rows.group_s)
        if seconds <= 0.0:
            return []
        relative = self._collectives.relative(rows.groups, rows.group_s)
        latest = rows.when[int(rows.when[:, 2].argmax())]
        at, one = np.zeros(1, dtype=np.int64), np.ones(1)
        turned = bank.enter(at, np.array([relative]), one, latest[None], 0.0, rows.warm_up[:1])
        # The bank counts what it is given; what share of the run transfers take is counted in seconds.
        bank.seconds[0] += seconds - relative
        if not bank.rising[0] and not rows.warm_up.all():
            self._collectives.learn(rows.groups, rows.group_s)
        if not len(turned):
            return []
        key: _Key = ("network", "dynamic", None)
        if bank.open[0]:
            fall = bank.fall(0)
            self._links.note_slow(self._since_ns(key), fall.last.end_ns)
            return self._end(key, fall.last.step, fall.last.end_ns, math.exp(fall.level))
        if not self._is_worth(bank.seconds[0], rows):
            return []
        return self._raise_transfer(key, seconds * (1.0 - 1.0 / max(relative, 1.0)), rows)

    def _raise_transfer(self, key: _Key, excess_s: float, rows: StepRows) -> list[Alarm]:
        bank = self._transfer
        length = int(bank.starting[0])
        if self._is_starved(length):
            unlooked = self._steps % _NAMING_EVERY > 0
            if unlooked or not self._links.any_changed(self._links.ended_ns(length), max(excess_s, 1e-9)):
                return []
        rise = bank.rise(0, self._drift.since(length))
        if rise is None:
            return []
        alarm = self._raise(key, rise.level, rise.confidence, (rise.first.step, rise.first.start_ns), rows)
        opened = self._open[key]
        opened.excess_s = max(excess_s, 1e-9)
        link = self._links.named(rise.first.start_ns, opened.excess_s)
        opened.alarm = alarm.model_copy(update={"link": link})
        return [opened.alarm]

    def _is_starved(self, length: int) -> bool:
        """Whether some rank computes slowly for half of the time: a starved host reduces slowly."""
        bank = self._compute
        return bool((bank.rising & (bank.starting >= FOLDED_SHARE * length)).any())

    def _take_own_transfers(self, rows: StepRows) -> list[Alarm]:
        turned = self._transfer.enter(
            rows.ranks, rows.transfer_s, np.ones(len(rows.ranks)), rows.when, 0.0, rows.warm_up
        )
        told: list[Alarm] = []
        for rank in turned.tolist():
            starves = (
                self._compute.rising[rank]
                and self._compute.starting[rank] >= FOLDED_SHARE * self._transfer.starting[rank]
            )
            if self._transfer.open[rank] or not starves:
                told += self._turn("network", self._transfer, rank, rows)
        return told

    def _name_links(self) -> list[Alarm]:
        """Looks again for the link of slow transfers, now that there are more samples."""
        opened = self._open.get(("network", "dynamic", None))
        if opened is None or opened.alarm.link is not None or opened.tries >= _NAMING_TRIES:
            return []
        if self._steps % _NAMING_EVERY:
            return []
        opened.tries += 1
        link = self._links.named(round(opened.alarm.since_s / _S), opened.excess_s)
        if link is None:
            return []
        opened.alarm = opened.alarm.model_copy(update={"link": link})
        return [opened.alarm]

    def _compare(self, rows: StepRows) -> list[Alarm]:
        """Who is slower than its equals all along, and who is not any more."""
        assert self._first_usual is not None
        told: list[Alarm] = []
        families: tuple[tuple[Family, SeriesBank], ...] = (("compute", self._compute), ("storage", self._storage))
        for family, bank in families:
            for lag in lags(bank, self.hosts, storage=family == "storage"):
                key: _Key = (family, "deterministic", lag.rank)
                if lag.slow and key not in self._open and self._is_worth(bank.seconds[lag.rank], rows):
                    told.append(self._raise(key, lag.level, lag.confidence, self._first_usual, rows))
                elif key in self._open and lag.level < math.log(LEAST_RATIO):
                    told += self._end_now(key, rows)
        return [*told, *self._compare_links(rows)]

    def _compare_links(self, rows: StepRows) -> list[Alarm]:
        assert self._first_usual is not None
        slow, steps = self._links.lasting()
        usual_s = self._transfer.seconds[0] / max(self._steps, 1) if self.lockstep else 0.0
        told: list[Alarm] = []
        for link in slow.links:
            gained_s = (link.busy_s - link.needed_s) / steps
            ratio = usual_s / max(usual_s - gained_s, usual_s / link.slowdown, 1e-9) if usual_s > 0 else 1.0
            key: _Key = ("network", "deterministic", link.tiers)
            if ratio >= LEAST_RATIO and key not in self._open:
                confidence = 0.5 * (1.0 + math.erf((link.z - 3.5) / math.sqrt(2.0)))
                alarm = self._raise(key, math.log(link.slowdown), confidence, self._first_usual, rows)
                self._open[key].alarm = alarm.model_copy(update={"link": link.ends})
                told.append(self._open[key].alarm)
        there = {link.tiers for link in slow.links}
        gone = [k for k in self._open if k[0] == "network" and k[1] == "deterministic" and k[2] not in there]
        for key in gone:
            told += self._end_now(key, rows)
        return told

    def _since_ns(self, key: _Key) -> int:
        opened = self._open.get(key)
        return 0 if opened is None else round(opened.alarm.since_s / _S)

    def _raise(self, key: _Key, level: float, confidence: float, since: tuple[int, int], rows: StepRows) -> Alarm:
        family, kind, place = key
        rank = place if isinstance(place, int) else None
        latest = rows.when[int(rows.when[:, 2].argmax())]
        if rank is not None and rank in rows.ranks:
            latest = rows.when[int(np.flatnonzero(rows.ranks == rank)[0])]
        alarm = Alarm(
            number=self._raised,
            rank=rank,
            host=None if rank is None else self.hosts[rank].host,
            link=None,
            family=family,
            kind=kind,
            slowdown=round(math.exp(level), 3),
            confidence=round(min(max(confidence, 0.0), 1.0), 4),
            since_step=since[0],
            since_s=round(since[1] * _S, 3),
            raised_step=int(latest[0]),
            raised_s=round(int(latest[2]) * _S, 3),
        )
        self._raised += 1
        self._open[key] = _Open(alarm)
        return alarm

    def _end(self, key: _Key, step: int, end_ns: int, slowdown: float) -> list[Alarm]:
        opened = self._open.pop(key, None)
        if opened is None:
            return []
        change = {"last_step": step, "over_s": round(end_ns * _S, 3), "slowdown": round(slowdown, 3)}
        return [opened.alarm.model_copy(update=change)]

    def _end_now(self, key: _Key, rows: StepRows) -> list[Alarm]:
        opened = self._open[key]
        latest = rows.when[int(rows.when[:, 2].argmax())]
        return self._end(key, int(latest[0]), int(latest[2]), opened.alarm.slowdown)


def settled(told: Sequence[Alarm]) -> tuple[Alarm, ...]:
    """Every alarm as it was told of last, in the order in which they were raised."""
    return tuple({alarm.number: alarm for alarm in told}.values())
