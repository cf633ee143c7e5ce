"""Base classes of strategies without a server."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from laggard.workloads.strategies.base.local_gradient import LocalGradient
from laggard.workloads.strategies.base.peer_connections import JoinState

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


class PeerStrategyBase:
    """Rank of a strategy without a server: its model and its connections to the other ranks.

    Args:
        context: training context of the rank.
    """

    def __init__(self, context: TrainingContext) -> None:
        from laggard.workloads.models.flat_state import FlatState

        assert context.peers is not None
        self.model, self.optimizer = context.model, context.optimizer
        self._context, self._peers = context, context.peers
        self._gradient, self._state = LocalGradient(context), FlatState(context.model)
        self._step = 0

    @property
    def weight(self) -> float:
        """Weight of this rank's model: 1, as for all ranks (see `PeerStrategy`)."""
        return 1.0

    @property
    def next_step(self) -> int | None:
        """Number of the step after the last one; None after training (see `AsyncStrategy`)."""
        return None if self._peers.has_ended else self._step


class StepRule(Protocol):
    """Rule that decides which step a rank is in and whether it may go on."""

    @property
    def step(self) -> int:
        """Step that the rank is in, or begins next."""

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        """Join the present ranks, beginning with this step."""


class RuleDrivenPeerStrategy(PeerStrategyBase):
    """Rank whose steps are numbered by a pure rule.

    Args:
        context: training context of the rank.
        rule: step rule of this rank.
    """

    def __init__(self, context: TrainingContext, rule: StepRule) -> None:
        import torch

        super().__init__(context)
        self._steps, self._mine = rule, torch.empty(0)

    @property
    def next_step(self) -> int | None:
        """Step that the rule names; None after training (see `AsyncStrategy`)."""
        return None if self._peers.has_ended else self._steps.step

    def join(self) -> None:
        """Copy the model of a present rank and begin with its step (see `AsyncStrategy`)."""
        join_state = self._peers.join()
        if join_state is not None:
            step, model = join_state
            self._steps.start_at_step(step, self._peers.present)
            self._state.write(model.to(self._context.device))

    def join_state(self) -> JoinState:
        """Return this step and the model that it began with (see `JoinHandler`)."""
        return self._steps.step, self._mine
