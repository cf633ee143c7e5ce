"""Counterfactual replays: causes removed, other speeds of ranks and transfers, or other links.

A replay in lockstep makes the same updates. Asynchronous ranks process the same number of samples.
The waits follow the strategy's own rule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.reference import COMPUTE_CODES
from laggard.analysis.replay.asynchronous.async_analysis import (
    AsyncAnalysis,
    build_async_analysis,
    explain_no_replay,
)
from laggard.analysis.replay.asynchronous.link_savings import compute_link_savings
from laggard.analysis.replay.asynchronous.step_savings import StepSavings, apply_savings
from laggard.analysis.replay.lockstep.all_reduce_ring import compute_transfer_factor, find_ring
from laggard.analysis.replay.lockstep.cause_removal import LocalRemoval, TransferRemoval
from laggard.analysis.replay.lockstep.lockstep_analysis import (
    LockstepAnalysis,
    build_lockstep_analysis,
)
from laggard.analysis.tables.columns import BoolArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.rank_timeline import PHASES
from laggard.core.cost_model.links import LinkChange
from laggard.core.errors import InputError, RunFolderError
from laggard.core.span_schema import Phase

_COMPUTE, _COMM = list(COMPUTE_CODES), Phase.COMM.code


@dataclass(frozen=True)
class Counterfactual:
    """Changes to a run.

    Attributes:
        without: positions in `RunReplay.causes` of the causes to remove.
        speeds: speed factor of a rank's computation, by rank.
        transfers: speed factor of all transfers.
        links: changed rates or delays of links, or of all links between two tiers.

    Examples:
        >>> from laggard.analysis.replay.what_if.counterfactual import build_replay
        >>> from laggard.analysis.tables.load_run import load_run
        >>> replay = build_replay(load_run(Path("runs/quickstart/latest")))
        >>> all_causes = frozenset(range(len(replay.causes)))
        >>> saved_s = replay.makespan_s() - replay.makespan_s(Counterfactual(without=all_causes))
        >>> saved_s > 10.0
        True
    """

    without: frozenset[int] = frozenset()
    speeds: Mapping[int, float] = field(default_factory=dict)
    transfers: float = 1.0
    links: tuple[LinkChange, ...] = ()

    def __post_init__(self) -> None:
        slowest = min([self.transfers, *self.speeds.values()])
        if not slowest > 0:
            raise InputError(f"speed factor {slowest} must be greater than 0")


@dataclass(frozen=True)
class RunReplay:
    """Run that can be replayed with changes."""

    analysis: LockstepAnalysis | AsyncAnalysis
    run: RunData

    @property
    def causes(self) -> Sequence[Cause]:
        """Return the causes of the run; the steps of a cause are indices."""
        return self.analysis.causes

    def makespan_s(self, change: Counterfactual | None = None) -> float:
        """Return the makespan with the changes, in virtual seconds.

        Raises:
            InputError: the requested changes of links contradict each other, or name no link of
                the run.
            RunFolderError: the run does not record the effect of a requested link.
        """
        counterfactual = change or Counterfactual()
        removed = np.isin(np.arange(len(self.causes)), list(counterfactual.without))
        if counterfactual.links:
            _refuse_conflicting_links(self.causes, counterfactual)
        if isinstance(self.analysis, LockstepAnalysis):
            return _compute_lockstep_s(self.analysis, self.run, counterfactual, removed)
        return _compute_asynchronous_s(self.analysis, self.run, counterfactual, removed)


def build_replay(run: RunData) -> RunReplay:
    """Analyze a run and prepare its replay.

    Raises:
        RunFolderError: the run has no step, or the waits between its workers follow no known rule.

    Examples:
        >>> from laggard.analysis.replay.what_if.counterfactual import Counterfactual
        >>> from laggard.analysis.tables.load_run import load_run
        >>> replay = build_replay(load_run(Path("runs/quickstart/latest")))
        >>> without_edge = Counterfactual(speeds=dict.fromkeys(range(4, 8), 4.0))
        >>> replay.makespan_s(without_edge) < replay.makespan_s()
        True
    """
    if run.is_lockstep:
        return RunReplay(build_lockstep_analysis(run), run)
    if why := explain_no_replay(run):
        raise RunFolderError(f"{run.folder}: {why}")
    return RunReplay(build_async_analysis(run), run)


def _refuse_conflicting_links(causes: Sequence[Cause], counterfactual: Counterfactual) -> None:
    """Raise an error if links are both repaired and changed, which would set their rates twice."""
    # Removing such a cause sets the link's rate to that of the fastest class.
    if any(
        causes[place].spec.uses_links and causes[place].kind == "deterministic"
        for place in counterfactual.without
    ):
        raise InputError(
            "the what-if removes a cause that was slow throughout on a link and also changes links,"
            " which contradict each other — request only one of the two"
        )


def _compute_lockstep_s(
    analysis: LockstepAnalysis, run: RunData, counterfactual: Counterfactual, removed: BoolArray
) -> float:
    timeline, removals = analysis.timeline, analysis.replay.removals
    barriers = len(timeline.group) + 1
    local = [
        replace(
            each, seconds=each.seconds * _compute_remaining_share(analysis, each, counterfactual)
        )
        for each in removals.local
    ]
    for rank, speed in counterfactual.speeds.items():
        saved = np.full((len(timeline.steps), len(_COMPUTE)), 1.0 - 1.0 / speed)
        seconds = timeline.work_before_barriers(rank, saved, _COMPUTE)
        local.append(LocalRemoval((), rank, 0, seconds))
    transfer = [
        *removals.transfer,
        TransferRemoval((), np.full(barriers, 1.0 / counterfactual.transfers)),
    ]
    if counterfactual.links:
        ring = find_ring(run, timeline, analysis.transfers)
        factor = compute_transfer_factor(
            ring, run, timeline, analysis.causes, counterfactual.without, counterfactual.links
        )
        transfer.append(TransferRemoval((), factor))
    changed = replace(removals, local=tuple(local), transfer=tuple(transfer))
    return replace(analysis.replay, removals=changed).makespan(removed)


def _compute_asynchronous_s(
    analysis: AsyncAnalysis, run: RunData, counterfactual: Counterfactual, removed: BoolArray
) -> float:
    async_replay, rank_timelines = analysis.async_replay, analysis.async_replay.rank_timelines
    savings = [
        each.scaled(
            _compute_remaining_share(analysis, each, counterfactual),
            1.0 / counterfactual.transfers,
        )
        for each in analysis.removals
    ]
    less_transfer = 1.0 - 1.0 / counterfactual.transfers
    for rank, rank_timeline in enumerate(rank_timelines):
        off = np.zeros(PHASES)
        off[_COMPUTE] = 1.0 - 1.0 / counterfactual.speeds.get(rank, 1.0)
        off[_COMM] = less_transfer
        message = rank_timeline.message_s * less_transfer
        savings.append(
            StepSavings(rank, rank_timeline.before @ off, rank_timeline.after @ off, message)
        )
    if counterfactual.links:
        savings += compute_link_savings(run, rank_timelines, counterfactual.links)
    durations = apply_savings(async_replay.observed(), savings, removed[None])
    return float(async_replay.compute_makespans(durations)[0])


def _compute_remaining_share(
    analysis: LockstepAnalysis | AsyncAnalysis,
    removal: LocalRemoval | StepSavings,
    counterfactual: Counterfactual,
) -> float:
    """Return the share of a removal's seconds that is left once the same work is faster.

    Removals are measured at the original speed, so they shrink in proportion.
    """
    family = analysis.causes[removal.causes[-1]].spec
    if family.uses_processor:
        return 1.0 / counterfactual.speeds.get(removal.rank, 1.0)
    return 1.0 / counterfactual.transfers if family.uses_links else 1.0
