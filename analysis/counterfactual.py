"""What if: a run replayed without some of its causes, with ranks and transfers of another speed, or
links of another rate or delay.

The same updates, or where each rank has a pace of its own the same number of samples, by the
strategy's own rule of who waits for whom.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.columns import BoolArray, FloatArray
from laggard.analysis.link_change import LinkChange
from laggard.analysis.load import Run
from laggard.analysis.own_pace.link_gains import link_gains
from laggard.analysis.own_pace.relief import relieved
from laggard.analysis.own_pace.replay import Durations
from laggard.analysis.own_pace.study import OwnStudy, study_own_pace, why_not_replayed
from laggard.analysis.reference import COMPUTE_CODES
from laggard.analysis.replay.relief import seconds_off
from laggard.analysis.replay.ring import find_ring, transfer_factor
from laggard.analysis.replay.what_if import WhatIf
from laggard.analysis.study import Study, study
from laggard.errors import InputError, RunFolderError
from laggard.span_schema import Phase

_COMPUTE, _COMM = list(COMPUTE_CODES), Phase.COMM.code


@dataclass(frozen=True)
class Otherwise:
    """What is otherwise than it was.

    Attributes:
        without: causes that are gone, as positions in `Replay.causes`.
        speeds: how many times as fast as it did a rank computes, by rank.
        transfers: how many times as fast as they were all transfers are.
        links: links, or all between two tiers, of another rate or delay.
    """

    without: frozenset[int] = frozenset()
    speeds: Mapping[int, float] = field(default_factory=dict)
    transfers: float = 1.0
    links: tuple[LinkChange, ...] = ()

    def __post_init__(self) -> None:
        slowest = min([self.transfers, *self.speeds.values()])
        if not slowest > 0:
            raise InputError(f"{slowest} times as fast is no speed — give ratios above 0")


@dataclass(frozen=True)
class Replay:
    """A run that can be replayed otherwise."""

    part: Study | OwnStudy
    run: Run

    @property
    def causes(self) -> Sequence[Cause]:
        """What was slow in it; a cause's steps are indices."""
        return self.part.causes

    def makespan_s(self, otherwise: Otherwise | None = None) -> float:
        """Virtual seconds that it would have taken.

        Raises:
            InputError: what is asked of links contradicts itself, or names none of the run.
            RunFolderError: the run does not tell what a link that is asked of holds up.
        """
        asked = otherwise or Otherwise()
        removed = np.isin(np.arange(len(self.causes)), list(asked.without))
        if asked.links:
            _refuse_twice(self.causes, asked)
        if isinstance(self.part, Study):
            return _lockstep_s(self.part, self.run, asked, removed)
        return _own_pace_s(self.part, self.run, asked, removed)


def replay_of(run: Run) -> Replay:
    """Takes a run apart so that it can be replayed.

    Raises:
        RunFolderError: there is no step to replay, or nobody can say how workers waited for each
            other.
    """
    if run.lockstep:
        return Replay(study(run), run)
    if why := why_not_replayed(run):
        raise RunFolderError(f"{run.folder}: {why}")
    return Replay(study_own_pace(run), run)


def _refuse_twice(causes: Sequence[Cause], asked: Otherwise) -> None:
    """A link cannot be as fast as others are and of a rate of its own."""
    if any(
        causes[place].family == "network" and causes[place].kind == "deterministic"
        for place in asked.without
    ):
        raise InputError(
            "a link that was slow all along is to be gone and links are to be otherwise — ask for"
            " one of both"
        )


def _lockstep_s(part: Study, run: Run, asked: Otherwise, removed: BoolArray) -> float:
    schedule, reliefs = part.what_if.schedule, part.what_if.reliefs
    local = schedule.local.copy()
    for rank, speed in asked.speeds.items():
        kept = np.full((len(part.timeline.steps), len(_COMPUTE)), 1.0 / speed)
        local[:, rank] -= seconds_off(part.timeline, rank, _COMPUTE, kept)
    left = tuple(
        replace(
            relief, seconds=relief.seconds * _left(part.causes, relief.causes, relief.rank, asked)
        )
        for relief in reliefs.local
    )
    transfer = schedule.transfer / asked.transfers
    if asked.links:
        ring = find_ring(run, part.timeline, part.transfers)
        factor = transfer_factor(ring, run, part.timeline, part.causes, asked.without, asked.links)
        transfer = transfer * factor[:, None]
    faster = replace(schedule, local=np.maximum(local, 0.0), transfer=transfer)
    return WhatIf(faster, replace(reliefs, local=left)).makespan(removed)


def _own_pace_s(part: OwnStudy, run: Run, asked: Otherwise, removed: BoolArray) -> float:
    left = [_left(part.causes, relief.causes, relief.rank, asked) for relief in part.reliefs]
    reliefs = [
        replace(
            relief,
            before=relief.before * kept,
            after=relief.after * kept,
            message=relief.message / asked.transfers,
        )
        for relief, kept in zip(part.reliefs, left, strict=True)
    ]
    durations = relieved(part.race, reliefs, removed[None])
    before, after, sooner = (
        list(each) for each in (durations.before, durations.after, durations.sooner)
    )
    for rank, pace in enumerate(part.race.paces):
        before[rank] = np.maximum(before[rank] - _saved(pace.before, rank, asked), 0.0)
        after[rank] = np.maximum(after[rank] - _saved(pace.after, rank, asked), 0.0)
        sooner[rank] = sooner[rank] + pace.message_s * (1.0 - 1.0 / asked.transfers)
    if asked.links:
        for rank, gain in enumerate(link_gains(run, part.race.paces, asked.links)):
            before[rank] = np.maximum(before[rank] - gain.before, 0.0)
            after[rank] = np.maximum(after[rank] - gain.after, 0.0)
            sooner[rank] = sooner[rank] + gain.message
    faster = Durations(tuple(before), tuple(after), tuple(sooner))
    return float(part.race.makespans(faster, part.race.goal())[0])


def _saved(seconds: FloatArray, rank: int, asked: Otherwise) -> FloatArray:
    """Seconds off each step, [N], of what its phases took, [N, P]."""
    computing = seconds[:, _COMPUTE].sum(axis=1) * (1.0 - 1.0 / asked.speeds.get(rank, 1.0))
    saved: FloatArray = computing + seconds[:, _COMM] * (1.0 - 1.0 / asked.transfers)
    return saved


def _left(causes: Sequence[Cause], named: Sequence[int], rank: int, asked: Otherwise) -> float:
    """What is left of a relief's seconds when what it relieves goes faster."""
    family = causes[named[-1]].family
    if family == "compute":
        return 1.0 / asked.speeds.get(rank, 1.0)
    return 1.0 / asked.transfers if family == "network" else 1.0
