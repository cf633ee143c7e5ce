"""Allocation of a batch's samples to ranks that makes the slowest step as short as possible; pure.

C. Chen, Q. Weng, W. Wang, B. Li, B. Li, "Semi-dynamic load balancing: efficient distributed
learning in non-dedicated environments", SoCC 2020 (LB-BSP). Costs are affine and not proportional,
as the paper's are on GPUs: a small batch is not proportionally cheap.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class AffineCost:
    """Seconds that a rank's step of n samples takes: fixed_s + n * sample_s.

    Raises:
        ValueError: a part is not finite, `fixed_s` is negative, or `sample_s` is not positive.
    """

    fixed_s: float
    sample_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.fixed_s < math.inf and 0 < self.sample_s < math.inf):
            raise ValueError(
                f"{self}: fixed_s must be at least 0, sample_s must be greater than 0, and"
                " both must be finite"
            )

    def estimate_s(self, samples: int) -> float:
        """Return the seconds of a step."""
        return self.fixed_s + self.sample_s * samples


def allocate_samples(
    costs: Sequence[AffineCost], batch: int, min_samples: int = 1
) -> tuple[int, ...]:
    """Return sizes n_i of sum `batch` that minimize the largest cost, then the second largest, ...

    A rank with fewer than `min_samples` samples computes `min_samples` anyway, since every rank
    takes part in every step. These samples are therefore free. A rank that is slower than the
    common level even with them gets them and no more. Some ranks get no samples only if the batch
    is too small for all.

    Args:
        costs: cost of every rank's steps.
        batch: number of samples to allocate.
        min_samples: fewest samples that a model can be trained on; no rank gets a number between 0
            and this, unless the batch is that small.

    Returns:
        Sizes by rank. Among ranks with equal costs, the first ones get the remaining samples. The
        result is the same on all machines, since it uses only additions, products and quotients of
        IEEE doubles.
    """
    takers = _select_ranks(costs, batch, min_samples)
    sizes = [0] * len(costs)
    for rank in takers:
        sizes[rank] = min(min_samples, batch)
    extra = batch - sum(sizes)
    level_s = _compute_level_s([costs[rank] for rank in takers], extra, min_samples)
    for rank in takers:
        # Allocate one sample less than fits below the level, so that rounding errors never allocate
        # more samples than there are. The heap below distributes the rest one by one.
        sizes[rank] += max(
            0, int((level_s - costs[rank].estimate_s(min_samples)) / costs[rank].sample_s) - 1
        )
    queue = [(costs[rank].estimate_s(sizes[rank] + 1), rank) for rank in takers]
    heapq.heapify(queue)
    for _ in range(batch - sum(sizes)):
        _, rank = queue[0]
        sizes[rank] += 1
        heapq.heapreplace(queue, (costs[rank].estimate_s(sizes[rank] + 1), rank))
    return tuple(sizes)


def estimate_slowest_s(
    costs: Sequence[AffineCost], sizes: Sequence[int], min_samples: int = 1
) -> float:
    """Return the seconds of the slowest rank's step, with padding to `min_samples` samples."""
    return max(
        cost.estimate_s(max(size, min_samples)) for cost, size in zip(costs, sizes, strict=True)
    )


def _select_ranks(costs: Sequence[AffineCost], batch: int, min_samples: int) -> list[int]:
    """Return the ranks that get samples: all, or the fastest if the batch is too small."""
    count = min(len(costs), max(batch // min_samples, 1))
    return sorted(
        sorted(range(len(costs)), key=lambda rank: (costs[rank].estimate_s(min_samples + 1), rank))[
            :count
        ]
    )


def _compute_level_s(costs: Sequence[AffineCost], extra: int, min_samples: int) -> float:
    """Return the time level up to which `extra` samples fill the ranks, as if divisible.

    This is water filling: ranks are added in the order of their floors until the level is below
    the next floor.
    """
    floors = sorted((cost.estimate_s(min_samples), 1 / cost.sample_s) for cost in costs)
    rate = filled = level_s = 0.0
    for (floor_s, per_s), (next_floor_s, _) in pairwise([*floors, (math.inf, 0.0)]):
        rate, filled = rate + per_s, filled + floor_s * per_s
        level_s = (extra + filled) / rate
        if level_s <= next_floor_s:
            break
    return level_s
