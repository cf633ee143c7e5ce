"""Causes and replay of a run of asynchronous ranks."""

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
from laggard.analysis.replay.asynchronous.deterministic_links import (
    find_deterministic_links,
    plan_link_removals,
)
from laggard.analysis.replay.asynchronous.step_dependencies import (
    attribute_inflight_waits,
    build_group_steps,
    build_step_graph,
)
from laggard.analysis.replay.asynchronous.step_savings import (
    StepSavings,
    apply_savings,
    plan_removals,
)
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline, build_rank_timelines
from laggard.core.contribution.shapley import compute_shapley
from laggard.core.rules.wait_rule import get_wait_rule
from laggard.core.run_schema import StrategyRecord

MAX_REPLAYED_STEPS = 200_000
"""Largest number of steps, over all ranks; the costs of longer runs would take minutes."""
MAX_DEPENDENCIES = 2_000_000
SEED = 20240229
# Each order needs one replay per cause, and replays of asynchronous ranks are slow.
_MAX_ORDERS = 128
# Largest number of steps times replays computed at once; it limits memory.
_MAX_CELLS = 4_000_000


@dataclass(frozen=True)
class AsyncAnalysis:
    """Analyzed run of asynchronous ranks.

    Attributes:
        async_replay: replay of the run.
        work: steps of all ranks, stacked.
        references: usual durations of phases.
        causes: slow intervals that were found.
        removals: savings from removing the causes.
    """

    async_replay: AsyncReplay
    work: StackedSteps
    references: References
    causes: tuple[Cause, ...]
    removals: tuple[StepSavings, ...]

    def makespan_s(self, removed: BoolArray) -> float:
        """Return the makespan in virtual seconds with the marked causes, [causes], removed."""
        return float(self._compute_makespans(removed[None])[0])

    def costs(self) -> FloatArray:
        """Return each cause's Shapley share, in virtual seconds, [causes]."""
        if not self.causes:
            return np.zeros(0)

        def game(members: BoolArray) -> FloatArray:
            return self._compute_makespans(members[:, 0])[:, None]

        return compute_shapley(game, len(self.causes), 1, np.random.default_rng(SEED), _MAX_ORDERS)

    def _compute_makespans(self, removed: BoolArray) -> FloatArray:
        """Return virtual seconds with causes removed, given as [C, causes]."""
        at_once = max(1, _MAX_CELLS // sum(map(len, self.async_replay.rank_timelines)))
        parts = (removed[begin : begin + at_once] for begin in range(0, len(removed), at_once))
        return np.concatenate(
            [
                self.async_replay.compute_makespans(
                    apply_savings(self.async_replay.observed(), self.removals, part)
                )
                for part in parts
            ]
        )


def explain_no_replay(run: RunData) -> str:
    """Return the reason why an asynchronous run cannot be replayed, as a sentence, or ""."""
    if run.federated is not None:
        return (
            "A federated training is not replayed, since whom a round asks depends on the rounds"
            " before it; the table of clients has what the last answers of rounds cost."
        )
    return _explain_unknown_waits(run) or _explain_size(run)


def _explain_unknown_waits(run: RunData) -> str:
    record = run.record
    if record is None:
        return (
            "The run has no run.json that names its strategy, so the waits between its workers are"
            " unknown and it is not replayed."
        )
    if record.origin is not None:
        return (
            "The trace comes from another tool, and no rule describes its workers' waits, so it is"
            " not replayed."
        )
    if record.lost_ranks or record.churn or len(np.unique(run.steps.rank)) < run.world_size:
        return "Some workers were not present throughout the run, so it is not replayed."
    return ""


def _explain_size(run: RunData) -> str:
    record, steps, others = run.record, len(run.steps), run.world_size - 1
    assert record is not None
    if steps > MAX_REPLAYED_STEPS:
        return (
            f"The workers took {steps} steps in total, and at most {MAX_REPLAYED_STEPS} can be"
            " replayed."
        )
    rule = get_wait_rule(record.strategy, run.world_size)
    everybody = rule is not None and rule.others is not None and len(rule.others[0]) == others
    if everybody and steps * others > MAX_DEPENDENCIES:
        return (
            f"The run has {steps} steps that each wait for {others} other ranks, which is too many"
            " to replay."
        )
    return ""


def build_async_analysis(run: RunData) -> AsyncAnalysis:
    """Find the causes of an asynchronous run and prepare its replay.

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
    removals = plan_removals(async_replay.rank_timelines, work, references, causes)
    removals += plan_link_removals(run, async_replay.rank_timelines, deterministic, len(causes))
    return AsyncAnalysis(async_replay, work, references, (*causes, *deterministic.causes), removals)


def _build_replay(
    strategy: StrategyRecord, rank_timelines: tuple[RankTimeline, ...], end_s: float
) -> AsyncReplay:
    match strategy.name, strategy.parameters:
        case "partial_reduce", {"group": int(size), "rounds": int(rounds)}:
            groups = build_group_steps(rank_timelines, size, rounds)
            return AsyncReplay(rank_timelines, groups, end_s)
    rule = get_wait_rule(strategy, len(rank_timelines))
    rank_timelines = attribute_inflight_waits(rank_timelines, rule)
    return AsyncReplay(rank_timelines, build_step_graph(rank_timelines, rule), end_s)
