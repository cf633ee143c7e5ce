"""The alarms of a run that are not over, and what is known of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from laggard.analysis.load import RankHost
from laggard.analysis.online.series import Moment
from laggard.analysis.online.steps import StepRows
from laggard.run_schema import Alarm, Family, Kind

_S = 1e-9


@dataclass(frozen=True)
class Place:
    """What an alarm is about: there is one at a time. `rank` is None for collectives; `tiers` are
    those of a link that is slow all along.
    """

    family: Family
    kind: Kind
    rank: int | None = None
    tiers: tuple[str, str] | None = None


@dataclass
class AlarmBook:
    """Raises alarms, numbers them, and ends them.

    Args:
        hosts: where each rank runs.
    """

    hosts: tuple[RankHost, ...]
    _open: dict[Place, Alarm] = field(default_factory=dict)
    _raised: int = 0

    def __contains__(self, place: Place) -> bool:
        return place in self._open

    def of(self, place: Place) -> Alarm | None:
        """The alarm about it that is not over."""
        return self._open.get(place)

    def places(self, chosen: Callable[[Place], bool]) -> tuple[Place, ...]:
        """What there are alarms about that are not over."""
        return tuple(place for place in self._open if chosen(place))

    def begin(
        self,
        place: Place,
        level: float,
        confidence: float,
        since: Moment,
        rows: StepRows,
        link: tuple[str, str] | None = None,
    ) -> Alarm:
        """Raise an alarm.

        Args:
            place: what it is about.
            level: how slow (log ratio).
            confidence: probability that it is by 1.10 or more.
            since: its first slow step.
            rows: the step that showed it.
            link: that is known to be slow.
        """
        shown = latest(rows, place.rank)
        self._open[place] = Alarm(
            number=self._raised,
            rank=place.rank,
            host=None if place.rank is None else self.hosts[place.rank].host,
            link=link,
            family=place.family,
            kind=place.kind,
            slowdown=round(math.exp(level), 3),
            confidence=round(min(max(confidence, 0.0), 1.0), 4),
            since_step=since.step,
            since_s=round(since.start_ns * _S, 3),
            raised_step=shown.step,
            raised_s=round(shown.end_ns * _S, 3),
        )
        self._raised += 1
        return self._open[place]

    def name(self, place: Place, link: tuple[str, str]) -> Alarm:
        """The link of an alarm has become known."""
        self._open[place] = self._open[place].model_copy(update={"link": link})
        return self._open[place]

    def end(self, place: Place, last: Moment, level: float | None = None) -> list[Alarm]:
        """It is over.

        Args:
            place: what the alarm was about; where there is none, nothing is told.
            last: its last slow step.
            level: how slow it was (log ratio), where that is better known now.
        """
        alarm = self._open.pop(place, None)
        if alarm is None:
            return []
        slowdown = alarm.slowdown if level is None else round(math.exp(level), 3)
        change = {
            "last_step": last.step,
            "over_s": round(last.end_ns * _S, 3),
            "slowdown": slowdown,
        }
        return [alarm.model_copy(update=change)]


def latest(rows: StepRows, rank: int | None = None) -> Moment:
    """The step of a rank, or the one that ended last."""
    at = np.flatnonzero(rows.ranks == rank) if rank is not None else np.zeros(0, dtype=np.int64)
    step, start_ns, end_ns = rows.when[
        int(at[0]) if len(at) else int(rows.when[:, 2].argmax())
    ].tolist()
    return Moment(step, start_ns, end_ns)
