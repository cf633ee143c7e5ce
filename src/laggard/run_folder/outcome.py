"""Fairness and cost of a run, computed from its tables by pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.core.selection.fairness import compute_jain_index

GIGABYTE = 1e9
HOUR_S = 3600.0


@dataclass(frozen=True)
class RankUsage:
    """Work of one rank.

    Attributes:
        samples: samples that entered the model.
        compute_s: virtual seconds of computing, for all samples.
        discarded: samples that were computed in vain.
    """

    samples: int
    compute_s: float
    discarded: int = 0

    @property
    def applied_s(self) -> float:
        """Return the seconds of computing that entered the model."""
        computed = self.samples + self.discarded
        return self.compute_s * self.samples / computed if computed else 0.0


def compute_fairness(ranks: Sequence[RankUsage], makespan_s: float) -> float:
    """Compute Jain's index over each worker's applied work, relative to its capacity.

    Alone, a worker would compute without waiting. Therefore its share is samples / (makespan x
    samples per compute second).
    """
    speed_shares = [
        rank.applied_s / makespan_s for rank in ranks if rank.samples > 0 and makespan_s > 0
    ]
    return compute_jain_index(speed_shares, len(ranks))


def compute_cost(
    makespan_s: float,
    hosts_per_tier: Mapping[str, int],
    bytes_across_tiers: int,
    prices: Mapping[str, float],
) -> float | None:
    """Compute the cost of host-seconds and bytes across tiers; None if the scenario has no prices.

    Args:
        makespan_s: virtual seconds that every host was used.
        hosts_per_tier: number of hosts of each layer.
        bytes_across_tiers: bytes sent from one tier to another.
        prices: price per host-hour of each tier, and `gigabyte` for 10^9 bytes.
    """
    if not prices:
        return None
    hourly_price = sum(count * prices.get(tier, 0.0) for tier, count in hosts_per_tier.items())
    return makespan_s / HOUR_S * hourly_price + bytes_across_tiers / GIGABYTE * prices.get(
        "gigabyte", 0.0
    )
