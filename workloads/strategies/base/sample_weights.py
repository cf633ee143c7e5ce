"""Weights of the ranks' models when ranks that trained on their own are averaged.

With equal shares of a batch, all ranks have the same weight, and a rank's gradient is scaled by
its share. Averaging in every step is then data-parallel training, to the last bit of momentum.

Shares balanced by speed may differ tenfold, and with such scaling the local steps of the ranks
would, too. Each rank then takes steps of the mean gradient of its own samples, and its weight is
the number of samples that it has trained on (B. McMahan et al., AISTATS 2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.partition import Share


class SampleWeights:
    """Weight of one rank's model since the last average.

    Args:
        by_samples: whether ranks are weighted by their samples; otherwise all weights are equal.
    """

    def __init__(self, *, by_samples: bool) -> None:
        self._by_samples, self._samples = by_samples, 0

    @property
    def weight(self) -> float:
        """Weight of this rank's model relative to the others; 1 directly after an average."""
        return float(self._samples or 1) if self._by_samples else 1.0

    def loss_scale(self, share: Share) -> float:
        """Return the factor of the summed loss for this share of a batch."""
        return 1 / max(len(share.indices), 1) if self._by_samples else share.loss_scale

    def add_samples(self, share: Share) -> None:
        """Count the samples of a finished step."""
        self._samples += len(share.indices)

    def apply_weight(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the vector that this rank adds to the sum of all ranks.

        When weighting by samples, the vector is multiplied by the weight, and the weight is
        appended as its last number.
        """
        import torch

        if not self._by_samples:
            return vector
        return torch.cat([vector * self._samples, vector.new_tensor([self._samples])])

    def mean(self, total: torch.Tensor, ranks: int) -> torch.Tensor:
        """Return the mean from the sum over all ranks, and begin to count for the next average.

        Args:
            total: sum of the vectors that `apply_weight` returned on each rank.
            ranks: number of ranks in the sum.
        """
        self._samples = 0
        return total[:-1] / total[-1] if self._by_samples else total / ranks
