"""The analysis of a run whose ranks had each a pace of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.columns import BoolArray, FloatArray
from laggard.analysis.findings import STRAGGLER_SHARE, Analysis
from laggard.analysis.intervals import LEAST_STEPS
from laggard.analysis.load import Run
from laggard.analysis.own_pace.causes import Work, find_own_causes, side_by_side
from laggard.analysis.own_pace.describe import describe_own_pace
from laggard.analysis.own_pace.groups import group_race
from laggard.analysis.own_pace.model import modelled_race_s
from laggard.analysis.own_pace.needs import find_needs, rule_of, stand_for_messages
from laggard.analysis.own_pace.paces import Pace, build_paces
from laggard.analysis.own_pace.relief import Relief, plan_own_reliefs, relieved
from laggard.analysis.own_pace.replay import Race
from laggard.analysis.reference import fit_references
from laggard.analysis.shapley import shapley
from laggard.run_schema import Finding, StrategyRecord

_SEED = 20240229
_MOST_ORDERS = 64


def analyse_own_pace(run: Run) -> Analysis:
    """Finds the stragglers of ranks of their own pace, and prices them.

    What a cause costs is its share of how much sooner as many samples would have been learnt from. Where ranks were lost, left or joined,
    or one finished no step, nothing is priced; nor in a trace of another tool, whose ranks wait for what no rule here knows.

    Raises:
        RunFolderError: no rank finished a step.
    """
    described = describe_own_pace(run)
    record = run.record
    if record is None or record.lost_ranks or record.churn or len(np.unique(run.steps.rank)) < run.world_size:
        return described
    if record.origin is not None:
        return described
    paces = build_paces(run)
    end_s = record.outcome.makespan_s if record.outcome is not None else max(float(p.end_s[-1]) for p in paces)
    race = _race(record.strategy, paces, end_s)
    paces = race.paces
    work = side_by_side(paces)
    references = fit_references(work, run.hosts)
    causes = find_own_causes(paces, work, references, end_s)
    game = _Game(race, plan_own_reliefs(paces, work, references, causes), len(causes), race.goal())
    costs = game.costs()
    findings = [_finding(run, race, cause, float(cost)) for cause, cost in zip(causes, costs, strict=True)]
    return replace(
        described,
        findings=tuple(sorted(findings, key=lambda f: -f.cost_s)),
        makespan_s=end_s,
        replayed_s=float(race.makespans(race.observed(), game.goal)[0]),
        without_causes_s=float(game.makespans(np.ones((1, len(causes)), dtype=np.bool_))[0]),
        modelled_s=modelled_race_s(race, work, references, causes, _SEED),
        notes=_notes(work),
        costed=True,
    )


def _race(strategy: StrategyRecord, paces: tuple[Pace, ...], end_s: float) -> Race:
    match strategy.name, strategy.parameters:
        case "partial_reduce", {"group": int(size)}:
            return group_race(paces, end_s, size)
    rule = rule_of(strategy, len(paces))
    paces = stand_for_messages(paces, rule)
    return Race(paces, find_needs(paces, rule), end_s)


@dataclass(frozen=True)
class _Game:
    race: Race
    reliefs: Sequence[Relief]
    players: int
    goal: float

    def makespans(self, removed: BoolArray) -> FloatArray:
        """Virtual seconds with causes removed, [C, causes]."""
        return self.race.makespans(relieved(self.race, self.reliefs, removed), self.goal)

    def costs(self) -> FloatArray:
        """Each cause's Shapley share, in virtual seconds."""
        if not self.players:
            return np.zeros(0)

        def game(members: BoolArray) -> FloatArray:
            return self.makespans(members[:, 0])[:, None]

        return shapley(game, self.players, 1, np.random.default_rng(_SEED), _MOST_ORDERS)


def _finding(run: Run, race: Race, cause: Cause, cost: float) -> Finding:
    assert cause.rank is not None
    number = race.paces[cause.rank].number
    other = _other_end(race.paces[cause.rank], cause)
    return Finding(
        rank=cause.rank,
        host=run.hosts[cause.rank].host,
        link=None if other is None else (run.hosts[other].host, run.hosts[cause.rank].host),
        family=cause.family,
        kind=cause.kind,
        first_step=int(number[cause.first]),
        last_step=int(number[cause.last]),
        slowdown=round(cause.slowdown, 4),
        cost_s=round(max(cost, 0.0), 6),
        confidence=round(min(max(cause.confidence, 0.0), 1.0), 4),
        masked=cost < STRAGGLER_SHARE * race.end_s,
    )


def _other_end(pace: Pace, cause: Cause) -> int | None:
    """The one rank that data went to or came from in the steps of a network cause; None where there were several, or a server."""
    if cause.family != "network":
        return None
    partners = frozenset().union(*pace.partners[cause.first : cause.last + 1])
    return next(iter(partners)) if len(partners) == 1 else None


def _notes(work: Work) -> tuple[str, ...]:
    counted = work.counted.sum(axis=0)
    few = int((counted < LEAST_STEPS).sum())
    if not few:
        return ()
    return (
        f"{few} of the {len(counted)} ranks took under ten steps after the first: too few to find anything slow in them.",
    )
