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
from laggard.analysis.replay.asynchronous.cause_removal import apply_removals
from laggard.analysis.replay.asynchronous.link_savings import compute_link_savings
from laggard.analysis.replay.lockstep.all_reduce_ring import compute_transfer_factor, find_ring
from laggard.analysis.replay.lockstep.lockstep_analysis import (
    LockstepAnalysis,
    build_lockstep_analysis,
)
from laggard.analysis.replay.lockstep.lockstep_replay import LockstepReplay
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.cost_model.links import LinkChange
from laggard.core.errors import InputError, RunFolderError
from laggard.core.simulation.step_graph import StepDurations
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
    schedule, removals = analysis.replay.schedule, analysis.replay.removals
    # Removals were measured at the original speed. If the same work becomes faster by another
    # change, the seconds that they save shrink in proportion.
    local = schedule.local.copy()
    for rank, speed in counterfactual.speeds.items():
        kept = np.full((len(analysis.timeline.steps), len(_COMPUTE)), 1.0 / speed)
        local[:, rank] -= analysis.timeline.work_before_barriers(rank, 1.0 - kept, _COMPUTE)
    left = tuple(
        replace(
            removal,
            seconds=removal.seconds
            * _compute_remaining_share(
                analysis.causes, removal.causes, removal.rank, counterfactual
            ),
        )
        for removal in removals.local
    )
    transfer = schedule.transfer / counterfactual.transfers
    if counterfactual.links:
        ring = find_ring(run, analysis.timeline, analysis.transfers)
        factor = compute_transfer_factor(
            ring,
            run,
            analysis.timeline,
            analysis.causes,
            counterfactual.without,
            counterfactual.links,
        )
        transfer = transfer * factor[:, None]
    faster = replace(schedule, local=np.maximum(local, 0.0), transfer=transfer)
    return LockstepReplay(faster, replace(removals, local=left)).makespan(removed)


def _compute_asynchronous_s(
    analysis: AsyncAnalysis, run: RunData, counterfactual: Counterfactual, removed: BoolArray
) -> float:
    left = [
        _compute_remaining_share(analysis.causes, removal.causes, removal.rank, counterfactual)
        for removal in analysis.removals
    ]
    removals = [
        replace(
            removal,
            before=removal.before * kept,
            after=removal.after * kept,
            message=removal.message / counterfactual.transfers,
        )
        for removal, kept in zip(analysis.removals, left, strict=True)
    ]
    durations = apply_removals(analysis.async_replay, removals, removed[None])
    before, after, earlier_s = (
        list(each) for each in (durations.before, durations.after, durations.earlier_s)
    )
    for rank, rank_timeline in enumerate(analysis.async_replay.rank_timelines):
        before[rank] = np.maximum(
            before[rank] - _compute_saved_s(rank_timeline.before, rank, counterfactual), 0.0
        )
        after[rank] = np.maximum(
            after[rank] - _compute_saved_s(rank_timeline.after, rank, counterfactual), 0.0
        )
        earlier_s[rank] = earlier_s[rank] + rank_timeline.message_s * (
            1.0 - 1.0 / counterfactual.transfers
        )
    if counterfactual.links:
        for rank, savings in enumerate(
            compute_link_savings(run, analysis.async_replay.rank_timelines, counterfactual.links)
        ):
            before[rank] = np.maximum(before[rank] - savings.before, 0.0)
            after[rank] = np.maximum(after[rank] - savings.after, 0.0)
            earlier_s[rank] = earlier_s[rank] + savings.message
    faster = StepDurations(tuple(before), tuple(after), tuple(earlier_s))
    return float(
        analysis.async_replay.compute_makespans(faster, analysis.async_replay.goal_samples())[0]
    )


def _compute_saved_s(seconds: FloatArray, rank: int, counterfactual: Counterfactual) -> FloatArray:
    """Return the seconds saved in each step, [N], from the seconds of its phases, [N, P]."""
    computing = seconds[:, _COMPUTE].sum(axis=1) * (
        1.0 - 1.0 / counterfactual.speeds.get(rank, 1.0)
    )
    saved: FloatArray = computing + seconds[:, _COMM] * (1.0 - 1.0 / counterfactual.transfers)
    return saved


def _compute_remaining_share(
    causes: Sequence[Cause], named: Sequence[int], rank: int, counterfactual: Counterfactual
) -> float:
    """Return the share of a removal's seconds that is left once the same work is faster."""
    family = causes[named[-1]].spec
    if family.uses_processor:
        return 1.0 / counterfactual.speeds.get(rank, 1.0)
    return 1.0 / counterfactual.transfers if family.uses_links else 1.0
