"""Plan of a migration: which numbers of samples move, what they save, and what they cost; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.workloads.balancing.allocation import (
    AffineCost,
    allocate_samples,
    estimate_slowest_s,
)
from laggard.workloads.migration.held_samples import apportion


@dataclass(frozen=True)
class RankState:
    """State of one rank.

    Attributes:
        held: number of samples that it holds.
        cost: cost of its steps.
        bytes_per_s: rate at which it has exchanged models so far; 0 if unknown.
    """

    held: int
    cost: AffineCost
    bytes_per_s: float


@dataclass(frozen=True)
class MigrationForecast:
    """Forecast of a migration.

    Attributes:
        counts: number of samples that moves, by source and target.
        before_s: seconds of the slowest rank's own work in a step, as samples are held now.
        after_s: the same after the migration.
        transfer_s: seconds of the transfers.
    """

    counts: tuple[tuple[int, int, int], ...]
    before_s: float
    after_s: float
    transfer_s: float

    @property
    def relative_gain(self) -> float:
        """Fraction of the slowest rank's work that the migration saves."""
        return 1 - self.after_s / self.before_s

    def saves(self, steps: float) -> bool:
        """Return whether so many steps save more time than the transfers take.

        The training is taken to stand still during the transfers, since its own messages use the
        same links.
        """
        return (self.before_s - self.after_s) * steps > self.transfer_s


def forecast_migration(
    ranks: Sequence[RankState], batch: int, min_samples: int, sample_bytes: float
) -> MigrationForecast:
    """Forecast the migration after which every rank holds what it can train on in equal time.

    Args:
        ranks: state of every rank.
        batch: number of samples of a step.
        min_samples: fewest samples that the model can be trained on.
        sample_bytes: size of a sample.
    """
    costs, held = [rank.cost for rank in ranks], [rank.held for rank in ranks]
    total = sum(held)
    goal = apportion(allocate_samples(costs, batch, min_samples), total)
    counts = _match([have - want for have, want in zip(held, goal, strict=True)])
    return MigrationForecast(
        counts,
        estimate_slowest_s(costs, apportion(held, batch), min_samples),
        estimate_slowest_s(costs, apportion(goal, batch), min_samples),
        _estimate_transfer_s(ranks, counts, sample_bytes),
    )


def _match(surplus: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    """Return source, target and number of moves that level surpluses, in the order of ranks."""
    left, moves = list(surplus), []
    targets = [rank for rank, count in enumerate(left) if count < 0]
    for source, count in enumerate(surplus):
        for target in targets if count > 0 else ():
            moved = min(left[source], -left[target])
            if moved > 0:
                moves.append((source, target, moved))
                left[source] -= moved
                left[target] += moved
    return tuple(moves)


def _estimate_transfer_s(
    ranks: Sequence[RankState], counts: Sequence[tuple[int, int, int]], sample_bytes: float
) -> float:
    """Return the seconds in which the busiest rank sends or receives its samples."""
    known = [rank.bytes_per_s for rank in ranks if rank.bytes_per_s > 0]
    slowest = min(known, default=0.0)
    seconds = [0.0]
    for rank, state in enumerate(ranks):
        rate = state.bytes_per_s or slowest
        for end in (0, 1):
            moved = sum(move[2] for move in counts if move[end] == rank)
            if moved:
                seconds.append(moved * sample_bytes / rate if rate else float("inf"))
    return max(seconds)
