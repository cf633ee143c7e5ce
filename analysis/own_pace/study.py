"""What is worked out of a run of ranks of their own pace before anything is said of it: what was
slow, and how it can be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.causes import Cause
from laggard.analysis.columns import BoolArray, FloatArray
from laggard.analysis.load import Run
from laggard.analysis.own_pace.causes import Work, find_own_causes, side_by_side
from laggard.analysis.own_pace.groups import group_race
from laggard.analysis.own_pace.lasting_links import find_lasting_links, plan_link_reliefs
from laggard.analysis.own_pace.needs import find_needs, rule_of, stand_for_messages
from laggard.analysis.own_pace.paces import Pace, build_paces
from laggard.analysis.own_pace.relief import Relief, plan_own_reliefs, relieved
from laggard.analysis.own_pace.replay import Race
from laggard.analysis.reference import References, fit_references
from laggard.analysis.shapley import shapley
from laggard.run_schema import StrategyRecord

MOST_STEPS = 200_000
"""Of all ranks together; longer runs would take minutes to be priced."""
MOST_NEEDS = 2_000_000
SEED = 20240229
_MOST_ORDERS = 128
_CELLS_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class OwnStudy:
    """A run of ranks of their own pace, taken apart.

    Attributes:
        race: how it can be replayed.
        work: the ranks' steps, side by side.
        references: what phases usually take.
        causes: what was slow.
        reliefs: what removing them takes off.
    """

    race: Race
    work: Work
    references: References
    causes: tuple[Cause, ...]
    reliefs: tuple[Relief, ...]

    def makespan_s(self, removed: BoolArray) -> float:
        """Virtual seconds with the marked causes removed, [causes]."""
        return float(self._makespans(removed[None])[0])

    def costs(self) -> FloatArray:
        """Each cause's Shapley share, in virtual seconds, [causes]."""
        if not self.causes:
            return np.zeros(0)

        def game(members: BoolArray) -> FloatArray:
            return self._makespans(members[:, 0])[:, None]

        return shapley(game, len(self.causes), 1, np.random.default_rng(SEED), _MOST_ORDERS)

    def _makespans(self, removed: BoolArray) -> FloatArray:
        """Virtual seconds with causes removed, [C, causes]."""
        at_once = max(1, _CELLS_AT_ONCE // sum(map(len, self.race.paces)))
        parts = (removed[begin : begin + at_once] for begin in range(0, len(removed), at_once))
        goal = self.race.goal()
        return np.concatenate(
            [self.race.makespans(relieved(self.race, self.reliefs, part), goal) for part in parts]
        )


def why_not_replayed(run: Run) -> str:
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
    if steps > MOST_STEPS:
        return f"All workers together took {steps} steps, and up to {MOST_STEPS} are replayed."
    rule = rule_of(record.strategy, run.world_size)
    everybody = rule is not None and rule.others is not None and len(rule.others[0]) == others
    if everybody and steps * others > MOST_NEEDS:
        return f"{steps} steps that wait for {others} others each are too many to be replayed."
    return ""


def study_own_pace(run: Run) -> OwnStudy:
    """Takes a run of ranks of their own pace apart.

    Raises:
        RunFolderError: some rank finished no step.
    """
    assert run.record is not None
    paces = build_paces(run)
    outcome = run.record.outcome
    end_s = (
        outcome.makespan_s if outcome is not None else max(float(pace.end_s[-1]) for pace in paces)
    )
    race = _race(run.record.strategy, paces, end_s)
    work = side_by_side(race.paces)
    references = fit_references(work, run.hosts)
    causes = find_own_causes(race.paces, work, references, end_s)
    lasting = find_lasting_links(run, race.paces, causes)
    reliefs = plan_own_reliefs(race.paces, work, references, causes)
    reliefs += plan_link_reliefs(run, race.paces, lasting, len(causes))
    return OwnStudy(race, work, references, (*causes, *lasting.causes), reliefs)


def _race(strategy: StrategyRecord, paces: tuple[Pace, ...], end_s: float) -> Race:
    match strategy.name, strategy.parameters:
        case "partial_reduce", {"group": int(size)}:
            return group_race(paces, end_s, size)
    rule = rule_of(strategy, len(paces))
    paces = stand_for_messages(paces, rule)
    return Race(paces, find_needs(paces, rule), end_s)
