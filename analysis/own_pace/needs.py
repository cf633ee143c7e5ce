"""What each step had to wait for: steps of other ranks, by the strategy's own rule; where it has none, as it was seen.

bounded_staleness (Ho et al., NIPS 2013): nobody goes on from step k before everybody's gradient of step k - `staleness` has come. gossip (Lian et
al., NIPS 2017): the models that the neighbours began the same step with. hop (Luo et al., ASPLOS 2019): those that they began a step up to
`staleness` earlier with, but for `backups` of them. fast_links: the models that the ranks began the step with that it was paired with. Under the others a rank waits for nobody, or for whoever happens
to be there; there the one that it was seen to wait for is what it needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import FloatArray, IntArray
from laggard.analysis.own_pace.paces import Pace
from laggard.run_schema import StrategyRecord

_TIE_S = 1e-9


@dataclass(frozen=True)
class Need:
    """A step of another rank, and how long after its work was done (or all of it had ended) word of it was here."""

    rank: int
    step: int
    ended: bool
    lag_s: float


@dataclass(frozen=True)
class Needs:
    """What one step of a rank needs, all but the `spare` that come last."""

    of: tuple[Need, ...]
    spare: int = 0


NOTHING = Needs(())


@dataclass(frozen=True)
class Rule:
    """Whom a rank waits for, and how far these must have come.

    Attributes:
        others: by rank, whom it needs in every step; None: its partners in that step.
        begun: whether it is enough that they have begun such a step, so that the one before has ended; else its work must be done.
        behind: steps that they may be behind.
        spare: of the others, how many it does not wait for.
    """

    others: tuple[tuple[int, ...], ...] | None
    begun: bool = True
    behind: int = 0
    spare: int = 0


def rule_of(strategy: StrategyRecord, world: int) -> Rule | None:
    """The waiting rule of a strategy; None where it has none that binds steps to steps, or the record does not say its parameters."""
    told = strategy.parameters
    everybody = tuple(tuple(q for q in range(world) if q != rank) for rank in range(world))
    ring = tuple(tuple(sorted({(r - 1) % world, (r + 1) % world} - {r})) for r in range(world))
    match strategy.name, told:
        case "bounded_staleness", {"staleness": int(staleness)}:
            return Rule(everybody, begun=False, behind=staleness)
        case "gossip", {"graph": graph}:
            return Rule(ring if graph == "ring" else everybody)
        case "hop", {"graph": graph, "staleness": int(staleness), "backups": int(backups)}:
            return Rule(ring if graph == "ring" else everybody, behind=staleness, spare=backups)
        case "fast_links", _:
            return Rule(None)
    return None


def find_needs(paces: Sequence[Pace], rule: Rule | None) -> tuple[tuple[Needs, ...], ...]:
    """What every step of every rank needs, [W][N].

    A need that was not yet met when the rank went on is none: it is one of those that it does not wait for. How long a message that nobody had to wait for took is not
    seen; it is taken to be what it usually was between the two, and no longer than it can have been.

    Args:
        paces: of every rank.
        rule: of the strategy, if it has one.
    """
    seen = [[_seen(pace, step, paces) for step in range(len(pace))] for pace in paces]
    usual = _usual_lags(seen)
    found = []
    for rank, pace in enumerate(paces):
        of_rank = []
        for step in range(len(pace)):
            binding = seen[rank][step]
            ruled, unmet = ([], 0) if rule is None else _ruled(rule, rank, pace, step, paces, usual)
            of = {need.rank: need for need in ruled} | ({binding.rank: binding} if binding else {})
            spare = 0 if rule is None else max(min(rule.spare - unmet, len(of) - 1), 0)
            of_rank.append(Needs(tuple(of.values()), spare) if of else NOTHING)
        found.append(tuple(of_rank))
    return tuple(found)


def _seen(pace: Pace, step: int, paces: Sequence[Pace]) -> Need | None:
    """The last thing that the awaited rank had done when the wait was over."""
    other = int(pace.awaited[step])
    if other < 0 or pace.wait_s[step] <= 0:
        return None
    done = []
    for ended, moments in ((False, paces[other].ready_s), (True, paces[other].end_s)):
        last = int(np.searchsorted(moments, pace.go_s[step] + _TIE_S, side="right")) - 1
        if last >= 0:
            done.append(Need(other, last, ended, max(float(pace.go_s[step] - moments[last]), 0.0)))
    return min(done, key=lambda need: need.lag_s, default=None)


def _usual_lags(seen: Sequence[Sequence[Need | None]]) -> dict[tuple[int, int], float]:
    """Median lag by (from, to)."""
    lags: dict[tuple[int, int], list[float]] = {}
    for rank, needs in enumerate(seen):
        for need in needs:
            if need is not None:
                lags.setdefault((need.rank, rank), []).append(need.lag_s)
    return {pair: float(np.median(values)) for pair, values in lags.items()}


def _ruled(
    rule: Rule, rank: int, pace: Pace, step: int, paces: Sequence[Pace], usual: Mapping[tuple[int, int], float]
) -> tuple[list[Need], int]:
    """What the rule asks for that had come, and how much of it had not."""
    others = tuple(pace.partners[step]) if rule.others is None else rule.others[rank]
    least = int(pace.number[step]) - rule.behind - (1 if rule.begun else 0)
    if least < 0:
        return [], 0
    needs = []
    for other in others:
        at = int(np.searchsorted(paces[other].number, least, side="left"))
        if at >= len(paces[other]):
            continue
        moments = paces[other].end_s if rule.begun else paces[other].ready_s
        room_s = float(pace.go_s[step] - moments[at])
        if room_s >= 0:
            needs.append(Need(other, at, rule.begun, min(usual.get((other, rank), 0.0), room_s)))
    return needs, len(others) - len(needs)


def order_of_events(paces: Sequence[Pace]) -> tuple[IntArray, IntArray, IntArray]:
    """All moments at which a rank was ready and at which it went on, in order of time.

    Returns:
        Rank, step, and 0 (ready) or 1 (goes on), [2 x steps of all]. Whatever a step needs is ready before it goes on, so the order serves for every
        replay in which the same steps are needed.
    """
    times: list[FloatArray] = []
    ranks, steps, kinds = [], [], []
    for rank, pace in enumerate(paces):
        for kind, moment in enumerate((pace.ready_s, pace.go_s)):
            times.append(moment)
            ranks.append(np.full(len(pace), rank, dtype=np.int64))
            steps.append(np.arange(len(pace)))
            kinds.append(np.full(len(pace), kind, dtype=np.int64))
    all_steps, all_kinds = np.concatenate(steps), np.concatenate(kinds)
    order = np.lexsort((all_steps, all_kinds, np.concatenate(times)))
    return np.concatenate(ranks)[order], all_steps[order], all_kinds[order]
