"""Hop's rules, of one rank and pure: when a step may end, which models it takes, and which step
comes next.

Q. Luo et al., "Hop: Heterogeneity-aware Decentralized Training", ASPLOS 2019. In the paper a rank
has a queue of updates and queues of tokens; who begins a step gives its neighbours a token each.
Here neighbours are mutual, and who begins a step sends its model to all of them: the message is the
token, and the number of a neighbour's tokens is how far it is known to be.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from laggard.workloads.strategies.base.graph import Graph, compute_mixing_weights, find_neighbors

Model = TypeVar("Model")


class HopBounds(Protocol):
    """Graph and bounds of the rule."""

    @property
    def graph(self) -> Graph:
        """Graph of the neighbors."""

    @property
    def staleness(self) -> int:
        """Largest age of a neighbor's model, in steps."""

    @property
    def backups(self) -> int:
        """Number of neighbors that a step does not wait for."""

    @property
    def skip(self) -> int:
        """Largest number of steps left out at once."""

    @property
    def max_iteration_gap(self) -> int:
        """Largest lead over a neighbor, in steps."""


@dataclass(frozen=True)
class StepNotice:
    """A neighbour is to be told that a step has begun; with the model, unless it is too far ahead
    to take it.
    """

    rank: int
    with_model: bool


@dataclass(frozen=True)
class HopStepEnd(Generic[Model]):
    """End of a step.

    Attributes:
        models: the neighbours' that are taken, by rank.
        weights: of these and of the own model; their sum is 1.
        staleness: steps by which the oldest of these models is behind, the one that the gradient
            was computed on being the own.
        skipped: steps that are left out now.
    """

    models: dict[int, Model]
    weights: dict[int, float]
    staleness: int
    skipped: int


@dataclass
class HopRule(Generic[Model]):
    """One rank's state.

    A model's version is the step that its rank began with it.

    Attributes:
        rank: whose.
        world_size: number of ranks in the beginning.
        parameters: bounds and graph.
        step: that the rank is in.
    """

    rank: int
    world_size: int
    parameters: HopBounds
    step: int = 0
    _present: list[int] = field(init=False)
    _begun: dict[int, int] = field(default_factory=dict)
    _received: dict[int, dict[int, Model]] = field(default_factory=dict)
    _notified: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._present = list(range(self.world_size))

    @property
    def neighbors(self) -> tuple[int, ...]:
        """Neighbors of this rank in the graph of the present ranks."""
        return find_neighbors(self.parameters.graph, self._present, self.rank)

    def build_notices(self) -> tuple[StepNotice, ...]:
        """Whom to tell of this step now: every neighbour once, new ones too."""
        unnotified = [rank for rank in self.neighbors if rank not in self._notified]
        self._notified.update(unnotified)
        newest_accepting_step = self.step + self.parameters.staleness
        return tuple(
            StepNotice(rank, self._newest_begun(rank) <= newest_accepting_step)
            for rank in unnotified
        )

    def receive(self, rank: int, version: int, model: Model | None) -> None:
        """A rank has begun a step; None where it did not send its model."""
        self._begun[rank] = version
        if model is None:
            return
        received = self._received.setdefault(rank, {})
        if self.parameters.staleness:  # only the newest is ever taken
            received.clear()
        received[version] = model

    def remove_member(self, rank: int) -> None:
        """A rank is gone: the graph is made anew of the others."""
        if rank in self._present:
            self._present.remove(rank)
        self._received.pop(rank, None)

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        """Begin with a step of a training that is under way, and with these others."""
        self.step, self._present = step, sorted({self.rank, *present})

    def add_member(self, rank: int) -> None:
        """A rank is there, after all or again: it is to be told of this step, and nothing is known
        of it before it says something.
        """
        self.remove_member(rank)
        self._present = sorted({rank, *self._present})
        self._begun.pop(rank, None)
        self._notified.discard(rank)

    def can_end(self) -> bool:
        """Whether enough models are there, and no neighbour too far behind for this rank to begin
        another step.
        """
        adjacent, limits = self.neighbors, self.parameters
        came = sum(self._newest_begun(rank) >= self.step - limits.staleness for rank in adjacent)
        needed = max(len(adjacent) - limits.backups, min(1, len(adjacent)))
        return came >= needed and all(
            self._newest_begun(rank) >= self.step + 1 - limits.max_iteration_gap
            for rank in adjacent
        )

    def end(self) -> HopStepEnd[Model]:
        """End the step and begin the next; only when it may end.

        Before a jump, models are taken as in the last of the steps that are left out.
        """
        next_step = self._next_step()
        counted = next_step - 1
        versions = {
            rank: version
            for rank in self.neighbors
            if (version := self._find_usable_version(rank, counted)) is not None
        }
        weights = self._compute_weights({**versions, self.rank: self.step}, counted)
        ending = HopStepEnd(
            models={rank: self._received[rank][version] for rank, version in versions.items()},
            weights=weights,
            staleness=counted - min([self.step, *versions.values()]),
            skipped=counted - self.step,
        )
        self._drop_old_models(versions, next_step)
        self.step, self._notified = next_step, set()
        return ending

    def _newest_begun(self, rank: int) -> int:
        """The newest step that a rank is known to have begun."""
        return self._begun.get(rank, -1)

    def _next_step(self) -> int:
        """Jump where all neighbours have gone beyond, and only to where all of them are: they need
        nothing of what is left out.
        """
        following = self.step + 1
        reached = min(
            (max(self._received.get(rank, {}), default=-1) for rank in self.neighbors), default=-1
        )
        return max(following, min(reached, following + self.parameters.skip))

    def _find_usable_version(self, rank: int, counted: int) -> int | None:
        """A neighbour's newest model if it is new enough, or without staleness that of the step
        itself, if it is there; each is taken once.
        """
        new = [
            version
            for version in self._received.get(rank, {})
            if version >= counted - self.parameters.staleness
        ]
        return (max if self.parameters.staleness else min)(new, default=None)

    def _compute_weights(self, versions: dict[int, int], counted: int) -> dict[int, float]:
        """The graph's, the less the older (the paper's equation 2), of those that are there."""
        oldest, window = counted - self.parameters.staleness, self.parameters.staleness + 1
        mixing = compute_mixing_weights(self.parameters.graph, self._present, self.rank)
        fresh = {
            rank: max(0, min(version, counted) - oldest + 1) for rank, version in versions.items()
        }
        if all(fresh.get(rank) == window for rank in mixing):
            return mixing
        weights = {rank: mixing[rank] * parts for rank, parts in fresh.items()}
        total = sum(weights.values())
        return {rank: weight / total for rank, weight in weights.items()}

    def _drop_old_models(self, taken: dict[int, int], next_step: int) -> None:
        oldest = next_step - self.parameters.staleness
        for rank, received in self._received.items():
            dropped = [
                version
                for version in received
                if version <= taken.get(rank, -1) or version < oldest
            ]
            for version in dropped:
                del received[version]
