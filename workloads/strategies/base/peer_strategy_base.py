"""Base classes of strategies without a server."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from laggard.workloads.strategies.base.local_gradient import LocalGradient
from laggard.workloads.strategies.base.peer_connections import JoinState

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


class PeerStrategyBase:
    """A rank, its model, and the others.

    Args:
        context: what it trains with.
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
        """Like any other's (see `PeerStrategy`)."""
        return 1.0

    @property
    def next_step(self) -> int | None:
        """The step after the last (see `AsyncStrategy`)."""
        return None if self._peers.has_ended else self._step


class StepRule(Protocol):
    """Says which step a rank is in, and what it may do."""

    @property
    def step(self) -> int:
        """The step that the rank is in, or begins next."""

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        """The rank joins others, in this step."""


class RuleDrivenPeerStrategy(PeerStrategyBase):
    """A rank whose steps are a pure rule's.

    Args:
        context: what it trains with.
        rule: of this rank.
    """

    def __init__(self, context: TrainingContext, rule: StepRule) -> None:
        import torch

        super().__init__(context)
        self._steps, self._mine = rule, torch.empty(0)

    @property
    def next_step(self) -> int | None:
        """The step that the rule says (see `AsyncStrategy`)."""
        return None if self._peers.has_ended else self._steps.step

    def join(self) -> None:
        """Take up the model of one who is there, and begin with the step that it is in (see
        `AsyncStrategy`).
        """
        join_state = self._peers.join()
        if join_state is not None:
            step, model = join_state
            self._steps.start_at_step(step, self._peers.present)
            self._state.write(model.to(self._context.device))

    def join_state(self) -> JoinState:
        """This step, and the model that it began with (see `JoinHandler`)."""
        return self._steps.step, self._mine
