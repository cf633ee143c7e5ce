"""What one rank does by itself, phase by phase: what all strategies but DDP's begin with."""

from __future__ import annotations

from torch.nn.functional import cross_entropy

from laggard.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.partition import Share
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.tracing.device_clock import device_clock


class LocalGradient:
    """Computes gradients of the loss on one rank's samples, scaled so that the ranks' mean is that
    of the whole batch.

    Args:
        seat: whose model, and who is told.
    """

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._clock = device_clock(seat.device)

    def compute(self, batch: Batch, share: Share, loss_scale: float | None = None) -> float:
        """Leave the gradients in the parameters; returns the mean loss over this rank's samples,
        NaN where it has none.

        Args:
            batch: this rank's samples.
            share: which of them count.
            loss_scale: factor of the summed loss; the share's when absent.
        """
        recorder, counted, computed = self._seat.recorder, len(share.indices), len(batch.labels)
        recorder.enter(Phase.FORWARD, work=computed)
        logits = self._seat.model(batch.inputs)
        summed = cross_entropy(logits[:counted], batch.labels[:counted], reduction="sum")
        self._clock.settle()
        recorder.enter(Phase.BACKWARD, work=computed)
        self._seat.optimizer.zero_grad()
        (summed * (share.loss_scale if loss_scale is None else loss_scale)).backward()  # type: ignore[no-untyped-call]
        self._clock.settle()
        return summed.item() / counted if counted else float("nan")

    def learn(self, batch: Batch, share: Share, loss_scale: float | None = None) -> float:
        """Compute the gradients and have the rank's own optimizer follow them; takes and returns
        what `compute` does.
        """
        loss = self.compute(batch, share, loss_scale)
        self._seat.recorder.enter(Phase.OPTIMIZER)
        self._seat.optimizer.step()
        self.settle()
        return loss

    def settle(self) -> None:
        """Wait until the device has done what it was told to."""
        self._clock.settle()
