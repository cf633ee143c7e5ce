"""What a run achieved and what it cost, from its tables: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

GIGABYTE = 1e9
HOUR_S = 3600.0


@dataclass(frozen=True)
class RankUsage:
    """What one rank did: samples that were learnt from, those computed in vain, and the seconds of
    compute (virtual) all of them took it.
    """

    samples: int
    compute_s: float
    discarded: int = 0

    @property
    def applied_s(self) -> float:
        """Of the compute, what was learnt from."""
        computed = self.samples + self.discarded
        return self.compute_s * self.samples / computed if computed else 0.0


def compute_fairness(ranks: Sequence[RankUsage], makespan_s: float) -> float:
    """Jain's index over what each worker applied, against what it could have done alone in the same
    time.

    A worker alone would compute without waiting, so its share is samples / (makespan x samples per
    compute second). 1 means that all were used equally; 1/n that only one was (Jain, Chiu, Hawe
    1984).
    """
    speed_shares = [
        rank.applied_s / makespan_s for rank in ranks if rank.samples > 0 and makespan_s > 0
    ]
    squares = sum(share**2 for share in speed_shares)
    return sum(speed_shares) ** 2 / (len(ranks) * squares) if squares > 0 else 0.0


def compute_cost(
    makespan_s: float,
    hosts_per_tier: Mapping[str, int],
    bytes_across_tiers: int,
    prices: Mapping[str, float],
) -> float | None:
    """Host-seconds and bytes across tiers at the scenario's prices; None where it names no price.

    Args:
        makespan_s: virtual seconds that every host was held.
        hosts_per_tier: how many hosts each layer has.
        bytes_across_tiers: bytes that left one tier for another.
        prices: per host-hour for each tier, and `gigabyte` for 10^9 bytes.
    """
    if not prices:
        return None
    hourly_price = sum(count * prices.get(tier, 0.0) for tier, count in hosts_per_tier.items())
    return makespan_s / HOUR_S * hourly_price + bytes_across_tiers / GIGABYTE * prices.get(
        "gigabyte", 0.0
    )
