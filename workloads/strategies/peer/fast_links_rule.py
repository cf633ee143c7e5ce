"""How ranks pair off step by step without waiting for anybody but their partners, and agree on how;
of one rank, and pure.

In step k all draw the same matching from the same policy. Every so many steps each tells all others
what it has measured, and the policy made of that holds from a whole period later on, so that hardly
anybody waits for it. Where a rank is lost while it tells, policies may differ for a period: who is
offered a model by anybody but its partner of that step refuses it, and the other goes on alone. So
whoever is furthest behind can always go on.

Who joins tells what it has measured from its first step on, and is told what others have told of
that step and later ones; it trains by itself until a policy is made of that, unless all still have
the first one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from laggard.workloads.strategies.peer.matching_policy import FloatArray, MatchingPolicy


Model = TypeVar("Model")

_REMEMBERED_PERIODS = 4
"""Periods for which a rank remembers what it told; those who are there are not so far apart."""


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
    """What ranks tell each other of a step: here is my model; I exchange with somebody else; here
    is what I have measured.
    """

    OFFER = 2
    REFUSAL = 3
    MEASURED = 4


@dataclass(frozen=True)
class FastLinksSend:
    """A rank is to be told something of a step."""

    rank: int
    message_kind: FastLinksMessage
    step: int


@dataclass
class FastLinksRule(Generic[Model]):
    """One rank's state.

    Attributes:
        rank: whose.
        world_size: number of ranks in the beginning.
        parameters: of the policy, and how often it is made.
        seed: common to all ranks.
        step: that the rank is in.
        partner: whom it exchanges models with in this step; None for nobody.
        policy: that partners are drawn from.
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
        self._plan_policy(dict.fromkeys(range(self.world_size), nothing))

    def begin(self, measured: FloatArray) -> tuple[FastLinksSend, ...]:
        """Begin the step; `measured` is told where it is time to. Returns what is to be sent."""
        sends: list[FastLinksSend] = []
        drawn = self.policy.partner(self.rank, self.seed, self.step)
        self.partner = drawn if drawn in self._present else None
        if self.partner is not None:
            sends.append(FastLinksSend(self.partner, FastLinksMessage.OFFER, self.step))
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
        """A rank's model for a step; what is to be answered."""
        if step < self.step or (step == self.step and rank != self.partner):
            return (FastLinksSend(rank, FastLinksMessage.REFUSAL, step),)
        self._offers[step, rank] = model
        return ()

    def on_refusal(self, rank: int, step: int) -> None:
        """A rank exchanges with somebody else in a step."""
        if (rank, step) == (self.partner, self.step):
            self.partner = None

    def on_measurement(self, rank: int, step: int, row: FloatArray) -> None:
        """Handle the measurements of another rank."""
        if step + self.parameters.every > self.step:
            self._measured.setdefault(step, {})[rank] = row

    def remove_member(self, rank: int) -> None:
        """A rank is gone."""
        self._present.discard(rank)
        if rank == self.partner and (self.step, rank) not in self._offers:
            self.partner = None

    def start_at_step(self, step: int, present: Collection[int]) -> None:
        """Begin with a step of a training that is under way, and with these others; before
        `begin`.
        """
        import numpy as np

        from laggard.workloads.strategies.peer.matching_policy import MatchingPolicy

        self.step, self._joined_steps[self.rank] = step, step
        self._present = {self.rank, *present}
        if step > self.parameters.every:
            self.policy = MatchingPolicy((), (), np.empty(0))

    def add_member(self, rank: int, step: int) -> tuple[tuple[int, FloatArray], ...]:
        """A rank is there, after all or again, and begins with a step; returns what it is to be
        reported_step: of which steps what was measured here, if anything.
        """
        import numpy as np

        self.remove_member(rank)
        self._present.add(rank)
        self._joined_steps[rank] = step
        every = self.parameters.every
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
        """Whether the partner's model is there, or no partner is, and what the next step's policy
        is made of.
        """
        partner_ready = self.partner is None or (self.step, self.partner) in self._offers
        reported_step = self._policy_source_step(self.step + 1)
        return partner_ready and (
            reported_step is None
            or self._reporting_ranks(reported_step) <= set(self._measured.get(reported_step, {}))
        )

    def end(self) -> Model | None:
        """End the step, only when it may end; returns the partner's model, if there is one."""
        model = None if self.partner is None else self._offers.pop((self.step, self.partner))
        self.step += 1
        reported_step = self._policy_source_step(self.step)
        if reported_step is not None:
            self._plan_policy(self._measured.pop(reported_step))
        return model

    def _reporting_ranks(self, step: int) -> set[int]:
        """Who is there now, and was in this step."""
        return {rank for rank in self._present if self._joined_steps.get(rank, 0) <= step}

    def _policy_source_step(self, step: int) -> int | None:
        """The step whose measurements a policy is made of that holds from this step on; None where
        the policy stays.
        """
        reported_step = step - self.parameters.every
        since = self._joined_steps.get(self.rank, 0)
        return (
            reported_step
            if step % self.parameters.every == 0 and reported_step > 0 and reported_step >= since
            else None
        )

    def _plan_policy(self, rows: dict[int, FloatArray]) -> None:
        """Of everybody's rows, also of who has left since: the others have them too."""
        from laggard.workloads.strategies.peer.matching_policy import (
            estimate_exchange_times,
            plan_matchings,
        )

        ranks, times_s = estimate_exchange_times(rows)
        self.policy = plan_matchings(
            ranks, times_s, mixing=self.parameters.mixing, explore=self.parameters.explore
        )
