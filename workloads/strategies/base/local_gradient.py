"""Local part of a training step, recorded phase by phase.

Every strategy except `allreduce` (torch's DDP) begins its steps with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laggard.core.span_schema import Phase

if TYPE_CHECKING:
    from laggard.workloads.datasets.dataset import Batch
    from laggard.workloads.datasets.partition import Share
    from laggard.workloads.strategies.base.strategy import TrainingContext


class LocalGradient:
    """Computation of the loss gradients on one rank's samples.

    Gradients are scaled so that the mean over the ranks is the gradient of the whole batch.

    Args:
        context: training context of the rank; its recorder receives the phases.
        measures_old_loss: whether `old_loss` is measured.

    Attributes:
        old_loss: mean loss over the rehearsed samples of the last batch; NaN if it had none.
    """

    def __init__(self, context: TrainingContext, *, measures_old_loss: bool = False) -> None:
        from laggard.workloads.tracing.device_clock import device_clock

        self._context, self._measures_old_loss = context, measures_old_loss
        self.old_loss = float("nan")
        self._clock = device_clock(context.device)

    def compute(self, batch: Batch, share: Share, loss_scale: float | None = None) -> float:
        """Compute the gradients of one batch and leave them in the parameters.

        Args:
            batch: this rank's samples.
            share: part of the batch that counts; padding samples are computed but not counted.
            loss_scale: factor of the summed loss; by default the factor of `share`.

        Returns:
            Mean loss over this rank's counted samples; NaN if it has none.
        """
        from torch.nn.functional import cross_entropy

        recorder, counted, computed = self._context.recorder, len(share.indices), len(batch.labels)
        recorder.enter(Phase.FORWARD, work=computed)
        logits = self._context.model(batch.inputs)
        # A summed loss, because the strategy decides what to divide by (see `SampleWeights`).
        summed = cross_entropy(logits[:counted], batch.labels[:counted], reduction="sum")
        if self._measures_old_loss:
            old = slice(counted - share.rehearsed, counted)
            # The mean over no sample is NaN.
            self.old_loss = cross_entropy(logits[old].detach(), batch.labels[old]).item()
        # A GPU works asynchronously: without this wait its time would go to a later phase.
        self._clock.synchronize()
        recorder.enter(Phase.BACKWARD, work=computed)
        self._context.optimizer.zero_grad()
        loss = summed * (share.loss_scale if loss_scale is None else loss_scale)
        loss.backward()  # type: ignore[no-untyped-call]
        self._clock.synchronize()
        return summed.item() / counted if counted else float("nan")

    def learn(self, batch: Batch, share: Share, loss_scale: float | None = None) -> float:
        """Compute the gradients and take a step of the rank's own optimizer.

        It takes the same arguments as `compute` and returns the same loss.
        """
        loss = self.compute(batch, share, loss_scale)
        self._context.recorder.enter(Phase.OPTIMIZER)
        self._context.optimizer.step()
        self.synchronize()
        return loss

    def synchronize(self) -> None:
        """Wait until the device has finished all submitted work."""
        self._clock.synchronize()
