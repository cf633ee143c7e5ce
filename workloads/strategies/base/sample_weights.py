"""Weights of the ranks' models where ranks that trained on their own average them.

Where all take even shares of a batch they count alike, and a rank's gradient is scaled by its
share, so that averaging in every step is data-parallel training to the last bit of momentum. Where
shares are balanced by speed they may differ tenfold, and so would the ranks' local steps: there
each takes steps of the mean gradient of its own samples, and counts by the samples that it has
trained on (B. McMahan et al., AISTATS 2017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from laggard.workloads.datasets.partition import Share


class SampleWeights:
    """One rank's weight since the last average.

    Args:
        by_samples: whether ranks count by their samples.
    """

    def __init__(self, *, by_samples: bool) -> None:
        self._by_samples, self._samples = by_samples, 0

    @property
    def weight(self) -> float:
        """This rank's, beside the others'; who has just averaged counts like any other."""
        return float(self._samples or 1) if self._by_samples else 1.0

    def loss_scale(self, share: Share) -> float:
        """Factor of the summed loss."""
        return 1 / max(len(share.indices), 1) if self._by_samples else share.loss_scale

    def add_samples(self, share: Share) -> None:
        """A step is done."""
        self._samples += len(share.indices)

    def apply_weight(self, vector: torch.Tensor) -> torch.Tensor:
        """What this rank adds to the sum, with its weight at the end where that is not the same for
        all.
        """
        import torch

        if not self._by_samples:
            return vector
        return torch.cat([vector * self._samples, vector.new_tensor([self._samples])])

    def mean(self, total: torch.Tensor, ranks: int) -> torch.Tensor:
        """The mean, from the sum over so many ranks; the next average begins."""
        self._samples = 0
        return total[:-1] / total[-1] if self._by_samples else total / ranks
