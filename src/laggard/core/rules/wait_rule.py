"""Steps of other ranks that a step waits for, for strategies whose rule links steps to steps; pure.

- bounded_staleness (Ho et al., NIPS 2013): no rank continues after step k until the gradients of
  step k - `staleness` of all ranks have arrived.
- gossip (Lian et al., NIPS 2017): a step needs the models with which the neighbors began the same
  step.
- hop (Luo et al., ASPLOS 2019): a step needs the models with which the neighbors began a step up
  to `staleness` earlier, except for `backups` of them.
- fast_links: a step needs the models with which its partners in that step began it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from laggard.core.rules.graph import Graph, find_neighbors

if TYPE_CHECKING:
    from laggard.core.run_schema import StrategyRecord


@dataclass(frozen=True)
class WaitRule:
    """Rule that names the ranks that a rank waits for, and the step that they must have reached.

    Attributes:
        others: for each rank, the ranks that it needs in every step; None means its partners in
            the step.
        start_suffices: if true, it is enough that they have begun the step, so the one before has
            ended; otherwise their work in the step must be done.
        max_steps_behind: number of steps that they may be behind.
        spare: number of them that the rank does not wait for.
    """

    others: tuple[tuple[int, ...], ...] | None
    start_suffices: bool = True
    max_steps_behind: int = 0
    spare: int = 0

    def oldest_step(self, step: int) -> int:
        """Return the step that the others must have finished before a rank goes on from `step`.

        If the beginning of a step suffices, it is the one before, after which they begin it.
        """
        return step - self.max_steps_behind - (1 if self.start_suffices else 0)


def count_spare(spare: int, others: int) -> int:
    """Return how many of so many ranks are not waited for: at least one is, if there is any."""
    return max(min(spare, others - 1), 0)


def get_wait_rule(strategy: StrategyRecord, world: int) -> WaitRule | None:
    """Return the wait rule of a strategy, or None without a rule that links steps to steps.

    The result is also None if the record lacks the strategy's parameters.
    """
    parameters = strategy.parameters
    graph: Graph = "ring" if parameters.get("graph") == "ring" else "complete"
    match strategy.name, parameters:
        case "bounded_staleness", {"staleness": int(staleness)}:
            everybody = _list_neighbors("complete", world)
            return WaitRule(everybody, start_suffices=False, max_steps_behind=staleness)
        case "gossip", {"graph": _}:
            return WaitRule(_list_neighbors(graph, world))
        case "hop", {"graph": _, "staleness": int(staleness), "backups": int(backups)}:
            neighbors = _list_neighbors(graph, world)
            return WaitRule(neighbors, max_steps_behind=staleness, spare=backups)
        case "fast_links", _:
            return WaitRule(None)
    return None


def _list_neighbors(graph: Graph, world: int) -> tuple[tuple[int, ...], ...]:
    return tuple(find_neighbors(graph, range(world), rank) for rank in range(world))
