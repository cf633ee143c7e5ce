"""What each step had to wait for: steps of other ranks, by the strategy's own rule; where it has
none, as it was seen.

bounded_staleness (Ho et al., NIPS 2013): nobody goes on from step k before everybody's gradient of
step k - `staleness` has come. gossip (Lian et al., NIPS 2017): the models that the neighbours began
the same step with. hop (Luo et al., ASPLOS 2019): those that they began a step up to `staleness`
earlier with, but for `backups` of them. fast_links: the models that the ranks began the step with
that it was paired with. Under the others a rank waits for nobody, or for whoever happens to be
there; there the one that it was seen to wait for is what it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from laggard.analysis.own_pace.paces import Pace
from laggard.errors import RunFolderError
from laggard.run_schema import StrategyRecord
from laggard.span_schema import Phase

_TIE_S = 1e-9
_COMM = Phase.COMM.code


@dataclass(frozen=True)
class Need:
    """A step of another rank, and how long after its work was done (or all of it had ended) word of
    it was here.
    """

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
        begun: whether it is enough that they have begun such a step, so that the one before has
            ended; else its work must be done.
        behind: steps that they may be behind.
        spare: of the others, how many it does not wait for.
    """

    others: tuple[tuple[int, ...], ...] | None
    begun: bool = True
    behind: int = 0
    spare: int = 0


def rule_of(strategy: StrategyRecord, world: int) -> Rule | None:
    """The waiting rule of a strategy; None where it has none that binds steps to steps, or the
    record does not say its parameters.
    """
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


def stand_for_messages(paces: tuple[Pace, ...], rule: Rule | None) -> tuple[Pace, ...]:
    """Paces in which ranks also stand for messages that were sent before they were ready, and still
    under way.

    A transfer behind no wait was that, and not only the taking of a message that had lain there, if
    by the rule the message had been under way for less time than it still took; of one that was
    longer under way it cannot be told.
    """
    if rule is None or not rule.begun:
        return paces
    return tuple(_standing(pace, rule, paces) for pace in paces)


def _standing(pace: Pace, rule: Rule, paces: Sequence[Pace]) -> Pace:
    go_s, after = pace.go_s.copy(), pace.after.copy()
    awaited, message_s = pace.awaited.copy(), pace.message_s.copy()
    for step in np.flatnonzero((pace.awaited < 0) & (pace.after[:, _COMM] > 0)).tolist():
        least = int(pace.number[step]) - rule.behind - 1
        left_s = float(pace.after[step, _COMM])
        sent = []
        for other in pace.partners[step]:
            at = int(np.searchsorted(paces[other].number, least, side="left"))
            if at < len(paces[other]):
                sent.append((float(pace.ready_s[step] - paces[other].end_s[at]), other))
        since_s, latest = min((each for each in sent if each[0] >= 0), default=(np.inf, -1))
        if since_s < left_s:
            go_s[step] += left_s
            after[step, _COMM] = 0.0
            awaited[step], message_s[step] = latest, left_s
    return replace(pace, go_s=go_s, after=after, awaited=awaited, message_s=message_s)


def find_needs(paces: Sequence[Pace], rule: Rule | None) -> tuple[tuple[Needs, ...], ...]:
    """What every step of every rank needs, [W][N].

    A need that was not yet met when the rank went on is none: it is one of those that it does not
    wait for. How long a message that nobody had to wait for took is not seen; it is taken to be
    what it usually was between the two, and no longer than it can have been.

    Args:
        paces: of every rank.
        rule: of the strategy, if it has one.
    """
    asked = [
        [_asked(rule, rank, step, paces) for step in range(len(pace))]
        for rank, pace in enumerate(paces)
    ]
    binding = [
        [_binding(pace, step, asked[r][step], paces) for step in range(len(pace))]
        for r, pace in enumerate(paces)
    ]
    usual = _usual_lags(binding)
    found = []
    for rank, pace in enumerate(paces):
        of_rank = []
        for step in range(len(pace)):
            met = [each for each in asked[rank][step] if each.lag_s >= 0]
            of = {
                each.rank: replace(each, lag_s=min(usual.get((each.rank, rank), 0.0), each.lag_s))
                for each in met
            }
            last = binding[rank][step]
            if last is not None:
                of[last.rank] = last
            unmet = len(asked[rank][step]) - len(met)
            spare = 0 if rule is None else max(min(rule.spare - unmet, len(of) - 1), 0)
            of_rank.append(Needs(tuple(of.values()), spare) if of else NOTHING)
        found.append(tuple(of_rank))
    return tuple(found)


def _asked(rule: Rule | None, rank: int, step: int, paces: Sequence[Pace]) -> list[Need]:
    """What the rule asks for, with the time since; before the rank went on it had not come where
    that is negative.
    """
    if rule is None:
        return []
    pace = paces[rank]
    others = tuple(pace.partners[step]) if rule.others is None else rule.others[rank]
    least = int(pace.number[step]) - rule.behind - (1 if rule.begun else 0)
    if least < 0:
        return []
    asked = []
    for other in others:
        at = int(np.searchsorted(paces[other].number, least, side="left"))
        moments = paces[other].end_s if rule.begun else paces[other].ready_s
        since_s = float(pace.go_s[step] - moments[at]) if at < len(moments) else -1.0
        asked.append(Need(other, at, rule.begun, since_s))
    return asked


def _binding(pace: Pace, step: int, asked: Sequence[Need], paces: Sequence[Pace]) -> Need | None:
    """What ended the wait: what the rule asks of the awaited rank, or else the last thing that it
    had done by then.
    """
    other = int(pace.awaited[step])
    if other < 0 or pace.wait_s[step] <= 0:
        return None
    ruled = next((need for need in asked if need.rank == other and need.lag_s >= 0), None)
    return ruled or _seen(pace, step, paces)


def _seen(pace: Pace, step: int, paces: Sequence[Pace]) -> Need | None:
    """The last thing that the awaited rank had done when the wait was over."""
    other = int(pace.awaited[step])
    done = []
    for ended, moments in ((False, paces[other].ready_s), (True, paces[other].end_s)):
        last = int(np.searchsorted(moments, pace.go_s[step] + _TIE_S, side="right")) - 1
        if last >= 0:
            done.append(Need(other, last, ended, max(float(pace.go_s[step] - moments[last]), 0.0)))
    return min(done, key=lambda need: need.lag_s, default=None)


def _usual_lags(binding: Sequence[Sequence[Need | None]]) -> dict[tuple[int, int], float]:
    """Median lag by (from, to)."""
    lags: dict[tuple[int, int], list[float]] = {}
    for rank, needs in enumerate(binding):
        for need in needs:
            if need is not None:
                lags.setdefault((need.rank, rank), []).append(need.lag_s)
    return {pair: float(np.median(values)) for pair, values in lags.items()}


def order_of_events(needs: Sequence[Sequence[Needs]]) -> tuple[tuple[int, int, bool], ...]:
    """All moments at which a rank was ready and at which it went on, each after those that it
    needs.

    Args:
        needs: of every step of every rank, [W][N].

    Returns:
        Rank, step, and whether it goes on, [2 x steps of all]; good for every replay in which the
        same steps are needed.

    Raises:
        RunFolderError: steps need each other in a circle, so the spans cannot be right.
    """
    order: list[tuple[int, int, bool]] = []
    ready, gone = [0] * len(needs), [0] * len(needs)

    def come(need: Need) -> bool:
        return need.step < (gone if need.ended else ready)[need.rank]

    while sum(gone) < sum(map(len, needs)):
        before = len(order)
        for rank, of_rank in enumerate(needs):
            while gone[rank] < len(of_rank):
                step = gone[rank]
                if ready[rank] == step:
                    order.append((rank, step, False))
                    ready[rank] += 1
                if not all(come(need) for need in of_rank[step].of):
                    break
                order.append((rank, step, True))
                gone[rank] += 1
        if len(order) == before:
            raise RunFolderError(
                "steps of several ranks wait for each other, so their spans cannot be right"
            )
    return tuple(order)
