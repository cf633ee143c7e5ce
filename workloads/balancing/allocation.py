"""Who takes how many samples of a batch, so that the slowest step is as short as it can be: pure.

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
        ValueError: a part is not finite, the fixed one is below nothing, or a sample costs nothing.
    """

    fixed_s: float
    sample_s: float

    def __post_init__(self) -> None:
        if not (0 <= self.fixed_s < math.inf and 0 < self.sample_s < math.inf):
            raise ValueError(
                f"{self}: the fixed part is 0 or more, that of a sample more than 0, and both"
                " finite"
            )

    def estimate_s(self, samples: int) -> float:
        """Seconds of a step."""
        return self.fixed_s + self.sample_s * samples


def allocate_samples(
    costs: Sequence[AffineCost], batch: int, min_samples: int = 1
) -> tuple[int, ...]:
    """Sizes n_i of sum `batch` that minimise the largest cost, then the second largest, and so on.

    A rank with no samples, or with fewer than `min_samples`, computes `min_samples` all the same,
    since every rank takes part in every step. So these cost nothing, and a rank that is above
    everybody's level without any gets them and no more. Only of a batch too small for all do some
    get none.

    Args:
        costs: of every rank.
        batch: samples to share out.
        min_samples: fewest samples that a model can be trained on; nobody gets a number between 0
            and it, unless the batch is that small.

    Returns:
        Sizes by rank. Of equal costs the first ranks get the samples that are left over. The same
        on all machines: it takes additions, products and quotients of IEEE doubles only.
    """
    takers = _select_ranks(costs, batch, min_samples)
    sizes = [0] * len(costs)
    for rank in takers:
        sizes[rank] = min(min_samples, batch)
    extra = batch - sum(sizes)
    level_s = _compute_level_s([costs[rank] for rank in takers], extra, min_samples)
    for rank in takers:
        # One less than fits under the level, lest rounding give more than there are.
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
    """Seconds of the slowest rank's step, with padding to `min_samples` samples."""
    return max(
        cost.estimate_s(max(size, min_samples)) for cost, size in zip(costs, sizes, strict=True)
    )


def _select_ranks(costs: Sequence[AffineCost], batch: int, min_samples: int) -> list[int]:
    """The ranks that get samples: all, or of a batch too small for that the quickest."""
    count = min(len(costs), max(batch // min_samples, 1))
    return sorted(
        sorted(range(len(costs)), key=lambda rank: (costs[rank].estimate_s(min_samples + 1), rank))[
            :count
        ]
    )


def _compute_level_s(costs: Sequence[AffineCost], extra: int, min_samples: int) -> float:
    """Seconds up to which `extra` samples fill the ranks, were samples divisible."""
    floors = sorted((cost.estimate_s(min_samples), 1 / cost.sample_s) for cost in costs)
    rate = filled = level_s = 0.0
    for (floor_s, per_s), (next_floor_s, _) in pairwise([*floors, (math.inf, 0.0)]):
        rate, filled = rate + per_s, filled + floor_s * per_s
        level_s = (extra + filled) / rate
        if level_s <= next_floor_s:
            break
    return level_s
