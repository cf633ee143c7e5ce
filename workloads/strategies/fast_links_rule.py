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
from typing import Generic, TypeVar

import numpy as np

from laggard.workloads.strategies.link_policy import FloatArray, Policy, exchange_times, plan_pairs
from laggard.workloads.strategies.parameters import FastLinksParameters

Model = TypeVar("Model")

_REMEMBERED = 4
"""Periods for which a rank remembers what it told; those who are there are not so far apart."""


class Word(Enum):
    """What ranks tell each other of a step: here is my model; I exchange with somebody else; here
    is what I have measured.
    """

    OFFER = 2
    REFUSAL = 3
    MEASURED = 4


@dataclass(frozen=True)
class Send:
    """A rank is to be told something of a step."""

    rank: int
    word: Word
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
    parameters: FastLinksParameters
    seed: int
    step: int = 0
    partner: int | None = None
    policy: Policy = field(init=False)
    _there: set[int] = field(init=False)
    _offers: dict[tuple[int, int], Model] = field(default_factory=dict)
    _measured: dict[int, dict[int, FloatArray]] = field(default_factory=dict)
    _since: dict[int, int] = field(default_factory=dict)
    _told: dict[int, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._there = set(range(self.world_size))
        nothing = np.full(self.world_size + 1, np.nan)
        self._plan(dict.fromkeys(range(self.world_size), nothing))

    def begin(self, measured: FloatArray) -> tuple[Send, ...]:
        """Begin the step; `measured` is told where it is time to. Returns what is to be sent."""
        sends: list[Send] = []
        drawn = self.policy.partner(self.rank, self.seed, self.step)
        self.partner = drawn if drawn in self._there else None
        if self.partner is not None:
            sends.append(Send(self.partner, Word.OFFER, self.step))
        for step, rank in [
            offer for offer in self._offers if offer[0] == self.step and offer[1] != self.partner
        ]:
            del self._offers[step, rank]
            sends.append(Send(rank, Word.REFUSAL, step))
        if self.step and self.step % self.parameters.every == 0:
            self.hear_measured(self.rank, self.step, measured)
            self._remember(measured)
            sends += [
                Send(rank, Word.MEASURED, self.step) for rank in sorted(self._there - {self.rank})
            ]
        return tuple(sends)

    def hear_offer(self, rank: int, step: int, model: Model) -> tuple[Send, ...]:
        """A rank's model for a step; what is to be answered."""
        if step < self.step or (step == self.step and rank != self.partner):
            return (Send(rank, Word.REFUSAL, step),)
        self._offers[step, rank] = model
        return ()

    def hear_refusal(self, rank: int, step: int) -> None:
        """A rank exchanges with somebody else in a step."""
        if (rank, step) == (self.partner, self.step):
            self.partner = None

    def hear_measured(self, rank: int, step: int, row: FloatArray) -> None:
        """What a rank has measured."""
        if step + self.parameters.every > self.step:
            self._measured.setdefault(step, {})[rank] = row

    def leave(self, rank: int) -> None:
        """A rank is gone."""
        self._there.discard(rank)
        if rank == self.partner and (self.step, rank) not in self._offers:
            self.partner = None

    def begin_late(self, step: int, there: Collection[int]) -> None:
        """Begin with a step of a training that is under way, and with these others; before
        `begin`.
        """
        self.step, self._since[self.rank] = step, step
        self._there = {self.rank, *there}
        if step > self.parameters.every:
            self.policy = Policy((), (), np.empty(0))

    def join(self, rank: int, step: int) -> tuple[tuple[int, FloatArray], ...]:
        """A rank is there, after all or again, and begins with a step; returns what it is to be
        told: of which steps what was measured here, if anything.
        """
        self.leave(rank)
        self._there.add(rank)
        self._since[rank] = step
        every = self.parameters.every
        nothing = np.full(self.world_size + 1, np.nan)
        return tuple(
            (told, self._told.get(told, nothing))
            for told in range(every, self.step + 1, every)
            if told >= step
        )

    def _remember(self, measured: FloatArray) -> None:
        oldest = self.step - _REMEMBERED * self.parameters.every
        self._told = {
            step: row for step, row in {**self._told, self.step: measured}.items() if step >= oldest
        }

    def may_end(self) -> bool:
        """Whether the partner's model is there, or no partner is, and what the next step's policy
        is made of.
        """
        met = self.partner is None or (self.step, self.partner) in self._offers
        told = self._told_for(self.step + 1)
        return met and (told is None or self._telling(told) <= set(self._measured.get(told, {})))

    def end(self) -> Model | None:
        """End the step, only when it may end; returns the partner's model, if there is one."""
        model = None if self.partner is None else self._offers.pop((self.step, self.partner))
        self.step += 1
        told = self._told_for(self.step)
        if told is not None:
            self._plan(self._measured.pop(told))
        return model

    def _telling(self, step: int) -> set[int]:
        """Who is there now, and was in this step."""
        return {rank for rank in self._there if self._since.get(rank, 0) <= step}

    def _told_for(self, step: int) -> int | None:
        """The step whose measurements a policy is made of that holds from this step on; None where
        the policy stays.
        """
        told = step - self.parameters.every
        since = self._since.get(self.rank, 0)
        return told if step % self.parameters.every == 0 and told > 0 and told >= since else None

    def _plan(self, rows: dict[int, FloatArray]) -> None:
        """Of everybody's rows, also of who has left since: the others have them too."""
        ranks, times_s = exchange_times(rows)
        self.policy = plan_pairs(
            ranks, times_s, mixing=self.parameters.mixing, explore=self.parameters.explore
        )
