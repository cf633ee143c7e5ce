"""The alarms of a run that are not over, and what is known of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from laggard.analysis.detection.online.series_bank import StepInterval
from laggard.analysis.detection.online.step_rows import StepRows
from laggard.analysis.tables.load_run import RankHost
from laggard.core.run_schema import Alarm, StragglerFamily, StragglerKind

_S = 1e-9


@dataclass(frozen=True)
class AlarmSubject:
    """What an alarm is about: there is one at a time. `rank` is None for collectives; `tiers` are
    those of a link that is slow all along.
    """

    family: StragglerFamily
    kind: StragglerKind
    rank: int | None = None
    tiers: tuple[str, str] | None = None


@dataclass
class AlarmBook:
    """Raises alarms, numbers them, and ends them.

    Args:
        hosts: where each rank runs.
    """

    hosts: tuple[RankHost, ...]
    _open: dict[AlarmSubject, Alarm] = field(default_factory=dict)
    _raised: int = 0

    def __contains__(self, subject: AlarmSubject) -> bool:
        return subject in self._open

    def find(self, subject: AlarmSubject) -> Alarm | None:
        """The alarm about it that is not over."""
        return self._open.get(subject)

    def list_open(self, chosen: Callable[[AlarmSubject], bool]) -> tuple[AlarmSubject, ...]:
        """What there are alarms about that are not over."""
        return tuple(subject for subject in self._open if chosen(subject))

    def raise_alarm(
        self,
        subject: AlarmSubject,
        level: float,
        confidence: float,
        since: StepInterval,
        rows: StepRows,
        link: tuple[str, str] | None = None,
    ) -> Alarm:
        """Raise an alarm.

        Args:
            subject: what it is about.
            level: how slow (log ratio).
            confidence: probability that it is by 1.10 or more.
            since: its first slow step.
            rows: the step that showed it.
            link: that is known to be slow.
        """
        shown = find_latest_step(rows, subject.rank)
        self._open[subject] = Alarm(
            number=self._raised,
            rank=subject.rank,
            host=None if subject.rank is None else self.hosts[subject.rank].host,
            link=link,
            family=subject.family,
            kind=subject.kind,
            slowdown=round(math.exp(level), 3),
            confidence=round(min(max(confidence, 0.0), 1.0), 4),
            since_step=since.step,
            since_s=round(since.start_ns * _S, 3),
            raised_step=shown.step,
            raised_s=round(shown.end_ns * _S, 3),
        )
        self._raised += 1
        return self._open[subject]

    def set_link(self, subject: AlarmSubject, link: tuple[str, str]) -> Alarm:
        """The link of an alarm has become known."""
        self._open[subject] = self._open[subject].model_copy(update={"link": link})
        return self._open[subject]

    def end_alarm(
        self, subject: AlarmSubject, last: StepInterval, level: float | None = None
    ) -> list[Alarm]:
        """It is over.

        Args:
            subject: what the alarm was about; where there is none, nothing is told.
            last: its last slow step.
            level: how slow it was (log ratio), where that is better known now.
        """
        alarm = self._open.pop(subject, None)
        if alarm is None:
            return []
        slowdown = alarm.slowdown if level is None else round(math.exp(level), 3)
        change = {
            "last_step": last.step,
            "ended_s": round(last.end_ns * _S, 3),
            "slowdown": slowdown,
        }
        return [alarm.model_copy(update=change)]


def find_latest_step(rows: StepRows, rank: int | None = None) -> StepInterval:
    """The step of a rank, or the one that ended last."""
    at = np.flatnonzero(rows.ranks == rank) if rank is not None else np.zeros(0, dtype=np.int64)
    step, start_ns, end_ns = rows.step_times[
        int(at[0]) if len(at) else int(rows.step_times[:, 2].argmax())
    ].tolist()
    return StepInterval(step, start_ns, end_ns)
