"""Hop's rules for one rank: end of a step, models to average, and next step; pure.

Q. Luo et al., "Hop: Heterogeneity-aware Decentralized Training", ASPLOS 2019. In the paper a rank
has a queue of updates and queues of tokens, and a rank that begins a step gives each neighbor a
token. Here the neighbor relation is mutual, and a rank that begins a step sends its model to all
neighbors. The message is the token: the newest step that a neighbor has announced equals its
number of tokens.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from laggard.core.rules.graph import Graph, compute_mixing_weights, find_neighbors
from laggard.core.rules.wait_rule import count_spare

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
        """Largest number of steps skipped at once."""

    @property
    def max_iteration_gap(self) -> int:
        """Largest lead over a neighbor, in steps."""


@dataclass(frozen=True)
class NeighborBounds:
    """Graph and bounds; the defaults are those of gossip, which waits for all neighbors.

    Gossip is the D-PSGD of X. Lian et al., NIPS 2017. The attributes are those of `HopBounds`.
    """

    graph: Graph = "ring"
    staleness: int = 0
    backups: int = 0
    skip: int = 0
    max_iteration_gap: int = 1_000_000_000


@dataclass(frozen=True)
class StepNotice:
    """Message to a neighbor that a step has begun.

    Attributes:
        rank: the neighbor.
        with_model: whether to send the model; a neighbor that is too far ahead cannot use it.
    """

    rank: int
    with_model: bool


@dataclass(frozen=True)
class HopStepEnd(Generic[Model]):
    """End of a step.

    Attributes:
        models: neighbors' models to average, by rank.
        weights: weights of these models and the rank's own; their sum is 1.
        staleness: age in steps of the oldest of these models; the own model is the one that the
            gradient was computed on.
        skipped: number of steps that are skipped now.
    """

    models: dict[int, Model]
    weights: dict[int, float]
    staleness: int
    skipped: int


@dataclass
class HopRule(Generic[Model]):
    """State of one rank.

    A model's version is the step that its rank began with it.

    Attributes:
        rank: number of this rank.
        world_size: number of ranks at the start.
        parameters: bounds and graph.
        step: step that the rank is in.
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
        """Return the notices of this step for neighbors that have not received one yet."""
        unnotified = [rank for rank in self.neighbors if rank not in self._notified]
        self._notified.update(unnotified)
        newest_accepting_step = self.step + self.parameters.staleness
        return tuple(
            StepNotice(rank, self._newest_begun(rank) <= newest_accepting_step)
            for rank in unnotified
        )

    def announce(self, rank: int, version: int) -> None:
        """Record that a rank has begun a step, and that it did not send its model."""
        self._begun[rank] = max(version, self._newest_begun(rank))

    def receive(self, rank: int, version: int, model: Model) -> None:
        """Record that a rank has begun a step with this model."""
        self.announce(rank, version)
        received = self._received.setdefault(rank, {})
        if self.parameters.staleness:  # only the newest model is ever used
            received.clear()
        received[version] = model

    def remove_member(self, rank: int) -> None:
        """Remove a rank that is gone and rebuild the graph from the others."""
        if rank in self._present:
            self._present.remove(rank)
        self._received.pop(rank, None)

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        """Join the present ranks in this step."""
        self.step, self._present = step, sorted({self.rank, *present})

    def add_member(self, rank: int) -> None:
        """Add a rank and discard the state of its previous session.

        The rank will be notified of this step. Its own step is unknown until its first message.
        """
        self.remove_member(rank)
        self._present = sorted({rank, *self._present})
        self._begun.pop(rank, None)
        self._notified.discard(rank)

    def can_end(self) -> bool:
        """Return whether the step may end.

        Enough models must be there, and no neighbor may be too far behind for this rank to begin
        another step.
        """
        adjacent, limits = self.neighbors, self.parameters
        came = sum(self._newest_begun(rank) >= self.step - limits.staleness for rank in adjacent)
        needed = len(adjacent) - count_spare(limits.backups, len(adjacent))
        return came >= needed and all(
            self._newest_begun(rank) >= self.step + 1 - limits.max_iteration_gap
            for rank in adjacent
        )

    def end(self) -> HopStepEnd[Model]:
        """End the step and begin the next; call it only if `can_end` returns True.

        Before a skip, models are chosen as in the last of the skipped steps.
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
        """Return the newest step that a rank is known to have begun; -1 for none."""
        return self._begun.get(rank, -1)

    def _next_step(self) -> int:
        """Return the next step, which skips some if this rank is behind all its neighbors.

        The rank skips no further than the step of its slowest neighbor, because the neighbors need
        nothing from the skipped steps.
        """
        following = self.step + 1
        reached = min(
            (max(self._received.get(rank, {}), default=-1) for rank in self.neighbors), default=-1
        )
        return max(following, min(reached, following + self.parameters.skip))

    def _find_usable_version(self, rank: int, counted: int) -> int | None:
        """Return the version of a neighbor's model to average, or None if no model is new enough.

        With staleness it is the newest model; without, it is the model of this very step. Each
        model is used once.
        """
        new = [
            version
            for version in self._received.get(rank, {})
            if version >= counted - self.parameters.staleness
        ]
        return (max if self.parameters.staleness else min)(new, default=None)

    def _compute_weights(self, versions: dict[int, int], counted: int) -> dict[int, float]:
        """Return the weights of the available models: those of the graph, less for older models.

        This is equation 2 of the paper.
        """
        oldest, window = counted - self.parameters.staleness, self.parameters.staleness + 1
        mixing = compute_mixing_weights(self.parameters.graph, self._present, self.rank)
        fresh = {
            rank: max(0, min(version, counted) - oldest + 1) for rank, version in versions.items()
        }
        # Without this case rounding would change the weights of gossip in the last bit.
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
