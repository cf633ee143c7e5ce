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
from typing import Generic, TypeVar

from laggard.workloads.strategies.graph import mixing_weights, neighbours
from laggard.workloads.strategies.parameters import HopParameters

Model = TypeVar("Model")


@dataclass(frozen=True)
class Notice:
    """A neighbour is to be told that a step has begun; with the model, unless it is too far ahead
    to take it.
    """

    rank: int
    with_model: bool


@dataclass(frozen=True)
class Ending(Generic[Model]):
    """How a step ends.

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
    parameters: HopParameters
    step: int = 0
    _there: list[int] = field(init=False)
    _begun: dict[int, int] = field(default_factory=dict)
    _held: dict[int, dict[int, Model]] = field(default_factory=dict)
    _told: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._there = list(range(self.world_size))

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Of this rank, in the graph of those who are there."""
        return neighbours(self.parameters.graph, self._there, self.rank)

    def notices(self) -> tuple[Notice, ...]:
        """Whom to tell of this step now: every neighbour once, new ones too."""
        untold = [rank for rank in self.neighbours if rank not in self._told]
        self._told.update(untold)
        newest_taking = self.step + self.parameters.staleness
        return tuple(Notice(rank, self._known(rank) <= newest_taking) for rank in untold)

    def hear(self, rank: int, version: int, model: Model | None) -> None:
        """A rank has begun a step; None where it did not send its model."""
        self._begun[rank] = version
        if model is None:
            return
        held = self._held.setdefault(rank, {})
        if self.parameters.staleness:  # only the newest is ever taken
            held.clear()
        held[version] = model

    def leave(self, rank: int) -> None:
        """A rank is gone: the graph is made anew of the others."""
        if rank in self._there:
            self._there.remove(rank)
        self._held.pop(rank, None)

    def begin_late(self, step: int, there: Collection[int]) -> None:
        """Begin with a step of a training that is under way, and with these others."""
        self.step, self._there = step, sorted({self.rank, *there})

    def join(self, rank: int) -> None:
        """A rank is there, after all or again: it is to be told of this step, and nothing is known
        of it before it says something.
        """
        self.leave(rank)
        self._there = sorted({rank, *self._there})
        self._begun.pop(rank, None)
        self._told.discard(rank)

    def may_end(self) -> bool:
        """Whether enough models are there, and no neighbour too far behind for this rank to begin
        another step.
        """
        beside, limits = self.neighbours, self.parameters
        came = sum(self._known(rank) >= self.step - limits.staleness for rank in beside)
        needed = max(len(beside) - limits.backups, min(1, len(beside)))
        return came >= needed and all(
            self._known(rank) >= self.step + 1 - limits.ahead for rank in beside
        )

    def end(self) -> Ending[Model]:
        """End the step and begin the next; only when it may end.

        Before a jump, models are taken as in the last of the steps that are left out.
        """
        next_step = self._next_step()
        counted = next_step - 1
        versions = {
            rank: version
            for rank in self.neighbours
            if (version := self._usable(rank, counted)) is not None
        }
        weights = self._weights({**versions, self.rank: self.step}, counted)
        ending = Ending(
            models={rank: self._held[rank][version] for rank, version in versions.items()},
            weights=weights,
            staleness=counted - min([self.step, *versions.values()]),
            skipped=counted - self.step,
        )
        self._forget(versions, next_step)
        self.step, self._told = next_step, set()
        return ending

    def _known(self, rank: int) -> int:
        """The newest step that a rank is known to have begun."""
        return self._begun.get(rank, -1)

    def _next_step(self) -> int:
        """Jump where all neighbours have gone beyond, and only to where all of them are: they need
        nothing of what is left out.
        """
        following = self.step + 1
        reached = min(
            (max(self._held.get(rank, {}), default=-1) for rank in self.neighbours), default=-1
        )
        return max(following, min(reached, following + self.parameters.skip))

    def _usable(self, rank: int, counted: int) -> int | None:
        """A neighbour's newest model if it is new enough, or without staleness that of the step
        itself, if it is there; each is taken once.
        """
        new = [
            version
            for version in self._held.get(rank, {})
            if version >= counted - self.parameters.staleness
        ]
        return (max if self.parameters.staleness else min)(new, default=None)

    def _weights(self, versions: dict[int, int], counted: int) -> dict[int, float]:
        """The graph's, the less the older (the paper's equation 2), of those that are there."""
        oldest, window = counted - self.parameters.staleness, self.parameters.staleness + 1
        mixing = mixing_weights(self.parameters.graph, self._there, self.rank)
        fresh = {
            rank: max(0, min(version, counted) - oldest + 1) for rank, version in versions.items()
        }
        if all(fresh.get(rank) == window for rank in mixing):
            return mixing
        weights = {rank: mixing[rank] * parts for rank, parts in fresh.items()}
        total = sum(weights.values())
        return {rank: weight / total for rank, weight in weights.items()}

    def _forget(self, taken: dict[int, int], next_step: int) -> None:
        oldest = next_step - self.parameters.staleness
        for rank, held in self._held.items():
            gone = [
                version for version in held if version <= taken.get(rank, -1) or version < oldest
            ]
            for version in gone:
                del held[version]
