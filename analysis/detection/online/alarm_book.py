"""Book of the open alarms of a run."""

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
    """Subject of an alarm; each subject has at most one open alarm.

    Attributes:
        family: family of the slow work.
        kind: `deterministic` or `dynamic`.
        rank: slow rank; None for collectives and links.
        tiers: tier pair of a link that is slow throughout the run.
    """

    family: StragglerFamily
    kind: StragglerKind
    rank: int | None = None
    tiers: tuple[str, str] | None = None


@dataclass
class AlarmBook:
    """Register that raises, numbers and ends alarms.

    Args:
        hosts: host of every rank.
    """

    hosts: tuple[RankHost, ...]
    _open: dict[AlarmSubject, Alarm] = field(default_factory=dict)
    _raised: int = 0

    def __contains__(self, subject: AlarmSubject) -> bool:
        return subject in self._open

    def find(self, subject: AlarmSubject) -> Alarm | None:
        """Return the open alarm of a subject, or None."""
        return self._open.get(subject)

    def list_open(self, chosen: Callable[[AlarmSubject], bool]) -> tuple[AlarmSubject, ...]:
        """Return the subjects of open alarms that `chosen` accepts."""
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
            subject: subject of the alarm.
            level: slowdown (log ratio).
            confidence: probability that the true ratio is 1.10 or more.
            since: first slow step.
            rows: the step after which the alarm is raised.
            link: slow link, if it is known.
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
        """Set the link of an open alarm and return the alarm."""
        self._open[subject] = self._open[subject].model_copy(update={"link": link})
        return self._open[subject]

    def end_alarm(
        self, subject: AlarmSubject, last: StepInterval, level: float | None = None
    ) -> list[Alarm]:
        """End an alarm.

        Args:
            subject: subject of the alarm.
            last: last slow step.
            level: slowdown (log ratio), if it is better known now.

        Returns:
            The ended alarm; nothing if the subject has no open alarm.
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
    """Return the step of a rank, or the step that ended last if the rank is absent or None."""
    at = np.flatnonzero(rows.ranks == rank) if rank is not None else np.zeros(0, dtype=np.int64)
    step, start_ns, end_ns = rows.step_times[
        int(at[0]) if len(at) else int(rows.step_times[:, 2].argmax())
    ].tolist()
    return StepInterval(step, start_ns, end_ns)
