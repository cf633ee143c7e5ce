"""Local part of a step, phase by phase, which all strategies but DDP's begin with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.core.span_schema import Phase

if TYPE_CHECKING:
    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class LocalGradient:
    """Computes gradients of the loss on one rank's samples, scaled so that the ranks' mean is that
    of the whole batch.

    Args:
        context: whose model, and who is told.
    """

    def __init__(self, context: TrainingContext) -> None:
        from laggard.workloads.tracing.device_clock import device_clock

        self._context = context
        self._clock = device_clock(context.device)

    def compute(self, batch: Batch, share: Share, loss_scale: float | None = None) -> float:
        """Leave the gradients in the parameters; returns the mean loss over this rank's samples,
        NaN where it has none.

        Args:
            batch: this rank's samples.
            share: which of them count.
            loss_scale: factor of the summed loss; the share's when absent.
        """
        from torch.nn.functional import cross_entropy

        recorder, counted, computed = self._context.recorder, len(share.indices), len(batch.labels)
        recorder.enter(Phase.FORWARD, work=computed)
        logits = self._context.model(batch.inputs)
        summed = cross_entropy(logits[:counted], batch.labels[:counted], reduction="sum")
        self._clock.synchronize()
        recorder.enter(Phase.BACKWARD, work=computed)
        self._context.optimizer.zero_grad()
        loss = summed * (share.loss_scale if loss_scale is None else loss_scale)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clock.synchronize()
        return summed.item() / counted if counted else float("nan")

    def learn(self, batch: Batch, share: Share, loss_scale: float | None = None) -> float:
        """Compute the gradients and have the rank's own optimizer follow them; takes and returns
        what `compute` does.
        """
        loss = self.compute(batch, share, loss_scale)
        self._context.recorder.enter(Phase.OPTIMIZER)
        self._context.optimizer.step()
        self.synchronize()
        return loss

    def synchronize(self) -> None:
        """Wait until the device has done what it was told to."""
        self._clock.synchronize()
