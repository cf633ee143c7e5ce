"""Protocol by which ranks pair off in each step and agree on a policy; one rank's side, pure.

In step k all ranks draw the same matching from the same policy. Once per period (`every` steps)
each rank sends its measurements to all others. The policy made from them takes effect one whole
period later, so hardly any rank waits for measurements.

If a rank is lost while it sends its measurements, the policies of the others may differ for a
period. A rank that receives a model from a rank other than its partner of that step refuses it,
and the sender continues alone. So the rank that is furthest behind can always continue.

A joining rank sends its measurements from its first step on. It receives the measurements that the
others have already sent for that step and later ones. It trains alone until a policy is made from
those, unless all ranks still have the first policy.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from laggard.core.rules.matching_policy import FloatArray, MatchingPolicy


Model = TypeVar("Model")

_REMEMBERED_PERIODS = 4
"""Periods for which a rank keeps the measurements that it has sent. Present ranks are never that
far apart.
"""


class PairingSettings(Protocol):
    """Settings of the policy that pairs ranks."""

    @property
    def every(self) -> int:
        """Steps between two policies."""

    @property
    def mixing(self) -> float:
        """Least speed of mixing, relative to uniform pairs."""

    @property
    def explore(self) -> float:
        """Fraction of the steps with uniform pairs."""


class FastLinksMessage(Enum):
    """Kind of a message about one step.

    OFFER carries the sender's model. REFUSAL says that the sender has another partner in that
    step. MEASURED carries the sender's measurements.
    """

    OFFER = 2
    REFUSAL = 3
    MEASURED = 4


@dataclass(frozen=True)
class FastLinksSend:
    """Message that must be sent to a rank."""

    rank: int
    message_kind: FastLinksMessage
    step: int


@dataclass
class FastLinksRule(Generic[Model]):
    """State of one rank.

    Attributes:
        rank: number of this rank.
        world_size: number of ranks at the start.
        parameters: settings of the policy, and its period.
        seed: seed shared by all ranks.
        step: step that the rank is in.
        partner: rank that it exchanges models with in this step; None for no partner.
        policy: policy that partners are drawn from.
    """

    rank: int
    world_size: int
    parameters: PairingSettings
    seed: int
    step: int = 0
    partner: int | None = None
    policy: MatchingPolicy = field(init=False)
    _present: set[int] = field(init=False)
    _offers: dict[tuple[int, int], Model] = field(default_factory=dict)
    _measured: dict[int, dict[int, FloatArray]] = field(default_factory=dict)
    _joined_steps: dict[int, int] = field(default_factory=dict)
    _reported_rows: dict[int, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        import numpy as np

        self._present = set(range(self.world_size))
        nothing = np.full(self.world_size + 1, np.nan)
        # Without measurements all matchings are equally probable.
        self._plan_policy(dict.fromkeys(range(self.world_size), nothing))

    def begin(self, measured: FloatArray) -> tuple[FastLinksSend, ...]:
        """Begin the step and return the messages to send.

        Args:
            measured: this rank's measurements; sent only at the end of a period.
        """
        sends: list[FastLinksSend] = []
        drawn = self.policy.partner(self.rank, self.seed, self.step)
        self.partner = drawn if drawn in self._present else None
        if self.partner is not None:
            sends.append(FastLinksSend(self.partner, FastLinksMessage.OFFER, self.step))
        # Models that arrived early from ranks with which this one does not exchange.
        for step, rank in [
            offer for offer in self._offers if offer[0] == self.step and offer[1] != self.partner
        ]:
            del self._offers[step, rank]
            sends.append(FastLinksSend(rank, FastLinksMessage.REFUSAL, step))
        if self.step and self.step % self.parameters.every == 0:
            self.on_measurement(self.rank, self.step, measured)
            self._remember(measured)
            sends += [
                FastLinksSend(rank, FastLinksMessage.MEASURED, self.step)
                for rank in sorted(self._present - {self.rank})
            ]
        return tuple(sends)

    def on_offer(self, rank: int, step: int, model: Model) -> tuple[FastLinksSend, ...]:
        """Handle a rank's model for a step and return the messages to send."""
        if step < self.step or (step == self.step and rank != self.partner):
            return (FastLinksSend(rank, FastLinksMessage.REFUSAL, step),)
        self._offers[step, rank] = model
        return ()

    def on_refusal(self, rank: int, step: int) -> None:
        """Continue without a partner if the refusal comes from the partner of this step."""
        if (rank, step) == (self.partner, self.step):
            self.partner = None

    def on_measurement(self, rank: int, step: int, row: FloatArray) -> None:
        """Handle the measurements of another rank."""
        # The policy that later measurements belong to has already been made.
        if step + self.parameters.every > self.step:
            self._measured.setdefault(step, {})[rank] = row

    def remove_member(self, rank: int) -> None:
        """Remove a rank that is gone; without its model this step has no partner."""
        self._present.discard(rank)
        # A model that arrived before its sender was lost is still averaged.
        if rank == self.partner and (self.step, rank) not in self._offers:
            self.partner = None

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        """Join the present ranks in this step; call it before `begin`."""
        import numpy as np

        from laggard.core.rules.matching_policy import MatchingPolicy

        self.step, self._joined_steps[self.rank] = step, step
        self._present = {self.rank, *present}
        # Later than the first period this rank cannot know the policy of the others: no pairs.
        if step > self.parameters.every:
            self.policy = MatchingPolicy((), (), np.empty(0))

    def add_member(self, rank: int, step: int) -> tuple[tuple[int, FloatArray], ...]:
        """Add a rank that begins with this step.

        Returns:
            Measurements of this rank that the new rank needs: the step that they were sent in, and
            the values.
        """
        import numpy as np

        self.remove_member(rank)
        self._present.add(rank)
        self._joined_steps[rank] = step
        every = self.parameters.every
        # A row of NaN stands for forgotten measurements, so that the new rank waits for no row.
        nothing = np.full(self.world_size + 1, np.nan)
        return tuple(
            (reported_step, self._reported_rows.get(reported_step, nothing))
            for reported_step in range(every, self.step + 1, every)
            if reported_step >= step
        )

    def _remember(self, measured: FloatArray) -> None:
        oldest = self.step - _REMEMBERED_PERIODS * self.parameters.every
        self._reported_rows = {
            step: row
            for step, row in {**self._reported_rows, self.step: measured}.items()
            if step >= oldest
        }

    def can_end(self) -> bool:
        """Return whether the step may end.

        The partner's model must be there, or there is no partner. All measurements for the next
        step's policy must be there, too.
        """
        partner_ready = self.partner is None or (self.step, self.partner) in self._offers
        reported_step = self._policy_source_step(self.step + 1)
        return partner_ready and (
            reported_step is None
            or self._reporting_ranks(reported_step) <= set(self._measured.get(reported_step, {}))
        )

    def end(self) -> Model | None:
        """End the step and return the partner's model, if there is a partner.

        Call it only if `can_end` returns True.
        """
        model = None if self.partner is None else self._offers.pop((self.step, self.partner))
        self.step += 1
        reported_step = self._policy_source_step(self.step)
        if reported_step is not None:
            self._plan_policy(self._measured.pop(reported_step))
        return model

    def _reporting_ranks(self, step: int) -> set[int]:
        """Return the present ranks that were already present in this step."""
        return {rank for rank in self._present if self._joined_steps.get(rank, 0) <= step}

    def _policy_source_step(self, step: int) -> int | None:
        """Return the step whose measurements make the policy that takes effect in this step.

        Returns None if the policy does not change in this step.
        """
        reported_step = step - self.parameters.every
        since = self._joined_steps.get(self.rank, 0)
        return (
            reported_step
            if step % self.parameters.every == 0 and reported_step > 0 and reported_step >= since
            else None
        )

    def _plan_policy(self, rows: dict[int, FloatArray]) -> None:
        """Make the policy from the measurements of all ranks.

        Rows of ranks that have left since are included, because all other ranks have them, too.
        """
        from laggard.core.rules.matching_policy import (
            estimate_exchange_times,
            plan_matchings,
        )

        ranks, times_s = estimate_exchange_times(rows)
        self.policy = plan_matchings(
            ranks, times_s, mixing=self.parameters.mixing, explore=self.parameters.explore
        )
