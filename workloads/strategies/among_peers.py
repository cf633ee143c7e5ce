"""What ranks of all strategies without a server have in common."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

import torch

from laggard.workloads.strategies.flat_state import FlatState
from laggard.workloads.strategies.local_gradient import LocalGradient
from laggard.workloads.strategies.peers import Standing
from laggard.workloads.strategies.strategy import Seat


class AmongPeers:
    """A rank, its model, and the others.

    Args:
        seat: what it trains with.
    """

    def __init__(self, seat: Seat) -> None:
        assert seat.peers is not None
        self.model, self.optimizer = seat.model, seat.optimizer
        self._seat, self._peers = seat, seat.peers
        self._gradient, self._state = LocalGradient(seat), FlatState(seat.model)
        self._step = 0

    @property
    def weight(self) -> float:
        """Like any other's (see `PeerStrategy`)."""
        return 1.0

    @property
    def next_step(self) -> int | None:
        """The step after the last (see `OwnPaceStrategy`)."""
        return None if self._peers.over else self._step


class Rule(Protocol):
    """Says which step a rank is in, and what it may do."""

    @property
    def step(self) -> int:
        """The step that the rank is in, or begins next."""

    def begin_late(self, step: int, present: Collection[int]) -> None:
        """The rank joins others, in this step."""


class RuledAmongPeers(AmongPeers):
    """A rank whose steps are a pure rule's.

    Args:
        seat: what it trains with.
        rule: of this rank.
    """

    def __init__(self, seat: Seat, rule: Rule) -> None:
        super().__init__(seat)
        self._steps, self._mine = rule, torch.empty(0)

    @property
    def next_step(self) -> int | None:
        """The step that the rule says (see `OwnPaceStrategy`)."""
        return None if self._peers.over else self._steps.step

    def join(self) -> None:
        """Take up the model of one who is there, and begin with the step that it is in (see
        `OwnPaceStrategy`).
        """
        standing = self._peers.join()
        if standing is not None:
            step, model = standing
            self._steps.begin_late(step, self._peers.present)
            self._state.write(model.to(self._seat.device))

    def standing(self) -> Standing:
        """This step, and the model that it began with (see `Resident`)."""
        return self._steps.step, self._mine
