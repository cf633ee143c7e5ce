"""What is worked out of a run of ranks of their own pace before anything is said of it: what was
slow, and how it can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.asynchronous_causes import (
    StackedSteps,
    find_async_causes,
    stack_steps,
)
from laggard.analysis.detection.causes import Cause
from laggard.analysis.detection.reference import References, fit_references
from laggard.analysis.replay.asynchronous.async_replay import AsyncReplay
from laggard.analysis.replay.asynchronous.cause_removal import (
    CauseRemoval,
    apply_removals,
    plan_async_removals,
)
from laggard.analysis.replay.asynchronous.deterministic_links import (
    find_deterministic_links,
    plan_link_removals,
)
from laggard.analysis.replay.asynchronous.group_replay import build_group_replay
from laggard.analysis.replay.asynchronous.step_dependencies import (
    attribute_inflight_waits,
    find_dependencies,
    get_wait_rule,
)
from laggard.analysis.replay.shapley import compute_shapley
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline, build_rank_timelines
from laggard.core.run_schema import StrategyRecord

MAX_REPLAYED_STEPS = 200_000
"""Of all ranks together; longer runs would take minutes to be priced."""
MAX_DEPENDENCIES = 2_000_000
SEED = 20240229
_MAX_ORDERS = 128
_MAX_CELLS = 4_000_000


@dataclass(frozen=True)
class AsyncAnalysis:
    """A run of ranks of their own pace, taken apart.

    Attributes:
        async_replay: how it can be replayed.
        work: the ranks' steps, side by side.
        references: what phases usually take.
        causes: what was slow.
        removals: what removing them takes off.
    """

    async_replay: AsyncReplay
    work: StackedSteps
    references: References
    causes: tuple[Cause, ...]
    removals: tuple[CauseRemoval, ...]

    def makespan_s(self, removed: BoolArray) -> float:
        """Virtual seconds with the marked causes removed, [causes]."""
        return float(self._compute_makespans(removed[None])[0])

    def costs(self) -> FloatArray:
        """Each cause's Shapley share, in virtual seconds, [causes]."""
        if not self.causes:
            return np.zeros(0)

        def game(members: BoolArray) -> FloatArray:
            return self._compute_makespans(members[:, 0])[:, None]

        return compute_shapley(game, len(self.causes), 1, np.random.default_rng(SEED), _MAX_ORDERS)

    def _compute_makespans(self, removed: BoolArray) -> FloatArray:
        """Virtual seconds with causes removed, [C, causes]."""
        at_once = max(1, _MAX_CELLS // sum(map(len, self.async_replay.rank_timelines)))
        parts = (removed[begin : begin + at_once] for begin in range(0, len(removed), at_once))
        goal_samples = self.async_replay.goal_samples()
        return np.concatenate(
            [
                self.async_replay.compute_makespans(
                    apply_removals(self.async_replay, self.removals, part), goal_samples
                )
                for part in parts
            ]
        )


def explain_no_replay(run: RunData) -> str:
    """Why a run of ranks of their own pace is not replayed, as a sentence; nothing if it can be."""
    record, steps, others = run.record, len(run.steps), run.world_size - 1
    if record is None:
        return (
            "The run has no record that says how its workers waited for each other, so it is not"
            " replayed."
        )
    if record.origin is not None:
        return "Workers of this trace wait for what no rule here knows, so it is not replayed."
    if record.lost_ranks or record.churn or len(np.unique(run.steps.rank)) < run.world_size:
        return "Not all workers were there to the end, so the run is not replayed."
    if steps > MAX_REPLAYED_STEPS:
        return (
            f"All workers together took {steps} steps, and up to {MAX_REPLAYED_STEPS} are replayed."
        )
    rule = get_wait_rule(record.strategy, run.world_size)
    everybody = rule is not None and rule.others is not None and len(rule.others[0]) == others
    if everybody and steps * others > MAX_DEPENDENCIES:
        return f"{steps} steps that wait for {others} others each are too many to be replayed."
    return ""


def build_async_analysis(run: RunData) -> AsyncAnalysis:
    """Takes a run of ranks of their own pace apart.

    Raises:
        RunFolderError: some rank finished no step.
    """
    assert run.record is not None
    rank_timelines = build_rank_timelines(run)
    outcome = run.record.outcome
    end_s = (
        outcome.makespan_s
        if outcome is not None
        else max(float(rank_timeline.end_s[-1]) for rank_timeline in rank_timelines)
    )
    async_replay = _build_replay(run.record.strategy, rank_timelines, end_s)
    work = stack_steps(async_replay.rank_timelines)
    references = fit_references(work, run.hosts)
    causes = find_async_causes(async_replay.rank_timelines, work, references, end_s)
    deterministic = find_deterministic_links(run, async_replay.rank_timelines, causes)
    removals = plan_async_removals(async_replay.rank_timelines, work, references, causes)
    removals += plan_link_removals(run, async_replay.rank_timelines, deterministic, len(causes))
    return AsyncAnalysis(async_replay, work, references, (*causes, *deterministic.causes), removals)


def _build_replay(
    strategy: StrategyRecord, rank_timelines: tuple[RankTimeline, ...], end_s: float
) -> AsyncReplay:
    match strategy.name, strategy.parameters:
        case "partial_reduce", {"group": int(size)}:
            return build_group_replay(rank_timelines, end_s, size)
    rule = get_wait_rule(strategy, len(rank_timelines))
    rank_timelines = attribute_inflight_waits(rank_timelines, rule)
    return AsyncReplay(rank_timelines, find_dependencies(rank_timelines, rule), end_s)
