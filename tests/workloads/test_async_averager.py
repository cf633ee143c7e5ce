"""Averages that nobody waits for by themselves: members under random delays, speeds and losses, the
leader's too, with a ledger of models and samples."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.workloads.strategies.background.async_averager import (
    AsyncAverager,
    AverageResult,
    AverageTiming,
    AveragingMode,
    AveragingPolicy,
    Contribution,
    PolicyChooser,
)
from laggard.workloads.transport.frames import Message

UNTIL = 1200
LONGEST = 40
delays = st.lists(st.integers(5, LONGEST), min_size=40, max_size=40)
worlds = st.integers(2, 6)
parts = st.sampled_from([0.01, 0.5, 1.0])
steps = st.integers(1, 4)
policies = st.builds(AveragingPolicy, steps, st.sampled_from(AveragingMode))


def keep(_measured: AverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
    return policy


@dataclass
class Trainer:
    """What a rank has, and its books: samples learnt from are held, in an average under way, or
    counted in one that is over."""

    model: torch.Tensor
    held: int = 0
    learnt_from: int = 0
    counted: int = 0
    steps: int = 0
    steps_since: int = 0
    learnt_since: torch.Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    waiting: bool = False
    under_way: Contribution | None = None
    begun_ns: int = 0
    last_ns: int = 0
    contribution: list[Contribution] = field(default_factory=list)
    steps_brought: list[int] = field(default_factory=list)
    policy: list[AveragingPolicy] = field(default_factory=list)
    outcomes: list[tuple[int, AverageResult]] = field(default_factory=list)

    def check_the_books(self) -> None:
        under_way = 0 if self.under_way is None else self.under_way.samples
        assert self.learnt_from == self.held + under_way + self.counted


@dataclass
class Simulated:
    """Ranks that train, average over connections that keep order and take time, and are lost in the
    midst of sending; event by event."""

    world_size: int
    times: list[int]
    agreed: AveragingPolicy
    ready_part: float = 0.5
    policy_chooser: PolicyChooser = keep
    dies: dict[int, int] = field(default_factory=dict)
    speeds_ns: list[int] | None = None
    now: int = 0
    members: dict[int, AsyncAverager] = field(init=False)
    trainers: dict[int, Trainer] = field(init=False)

    def __post_init__(self) -> None:
        ranks = range(self.world_size)
        self.trainers = {
            rank: Trainer(torch.tensor([rank, -rank, 1.0], dtype=torch.float64)) for rank in ranks
        }
        self.members = {rank: self._member(rank) for rank in ranks}
        self._ticks, self._drawn = count(), count()
        self._free: dict[tuple[int, int], int] = {}
        self._events: list[tuple[int, int, str, int, Message | int]] = []

    def _member(self, rank: int) -> AsyncAverager:
        return AsyncAverager(
            rank,
            range(self.world_size),
            self.agreed,
            self.ready_part,
            contribute=lambda: self._contribute(rank),
            on_average_done=lambda outcome: self._on_average_done(rank, outcome),
            policy_chooser=self.policy_chooser,
            clock_ns=lambda: self.now,
        )

    def run(self, until: int = UNTIL) -> None:
        for rank in self.members:
            self._go_on(rank)
        for rank, when in self.dies.items():
            # Who sends nothing for so long is lost all the same.
            self._push(when + LONGEST, "die", rank)
        self.drain(until)

    def drain(self, until: int = UNTIL) -> None:
        """Until all that was sent has been heard."""
        while self._events:
            self.now, _, what, rank, about = heapq.heappop(self._events)
            if rank not in self.members or (what == "step" and self.now >= until):
                continue
            if isinstance(about, Message):
                self.members[rank].receive(about)
            elif what == "gone":
                self.members[rank].remove_member(about)
            elif what == "step":
                self._learn(rank, about)
            self._post(rank, dies=what == "die" or self.now >= self.dies.get(rank, math.inf))
            self._check()

    def _draw(self) -> int:
        return self.times[next(self._drawn) * 7 % len(self.times)]

    def _push(self, at: int, what: str, rank: int, about: Message | int = 0) -> None:
        heapq.heappush(self._events, (at, next(self._ticks), what, rank, about))

    def _over_connection(self, src: int, dst: int, what: str, about: Message | int) -> None:
        """In the order in which it was sent."""
        self._free[src, dst] = max(self._free.get((src, dst), 0), self.now + self._draw())
        self._push(self._free[src, dst], what, dst, about)

    def _go_on(self, rank: int) -> None:
        took = self._draw() if self.speeds_ns is None else self.speeds_ns[rank]
        self._push(self.now + took, "step", rank, took)

    def _learn(self, rank: int, took: int) -> None:
        trainer, samples = self.trainers[rank], 1 + self._draw() % 5
        change = torch.tensor([samples, 1.0, self._draw() / 64], dtype=torch.float64)
        trainer.model, trainer.learnt_since = trainer.model + change, trainer.learnt_since + change
        trainer.held, trainer.learnt_from = trainer.held + samples, trainer.learnt_from + samples
        trainer.steps, trainer.steps_since = trainer.steps + 1, trainer.steps_since + 1
        trainer.waiting = True
        self.members[rank].record_steps(1, took)

    def _post(self, rank: int, dies: bool) -> None:
        outbox = self.members[rank].outbox
        sent = self._draw() % (len(outbox) + 1) if dies else len(outbox)
        for _ in range(sent):
            to, message = outbox.popleft()
            assert to != rank
            self._over_connection(rank, to, "hear", replace(message, sender=rank))
        if dies:
            del self.members[rank]
            for other in self.members:
                self._over_connection(rank, other, "gone", rank)
        elif self.trainers[rank].waiting and not self.members[rank].waits:
            self.trainers[rank].waiting = False
            self._go_on(rank)

    def _contribute(self, rank: int) -> Contribution:
        trainer = self.trainers[rank]
        assert trainer.under_way is None
        if rank == 0 and not self.dies:
            self._check_enough_are_ready()
        trainer.under_way = Contribution(trainer.model, trainer.held)
        trainer.contribution.append(trainer.under_way)
        trainer.steps_brought.append(trainer.steps_since)
        trainer.begun_ns, trainer.held, trainer.steps_since = self.now, 0, 0
        trainer.learnt_since = torch.zeros(3, dtype=torch.float64)
        return trainer.under_way

    def _check_enough_are_ready(self) -> None:
        """When the leader begins: of steps since the last average, not since one before it."""
        policy = self.trainers[0].policy[-1] if self.trainers[0].policy else self.agreed
        part = 1.0 if policy.waits else self.ready_part
        ready = [
            trainer for trainer in self.trainers.values() if trainer.steps_since >= policy.steps
        ]
        assert len(ready) >= part * self.world_size

    def _on_average_done(self, rank: int, outcome: AverageResult) -> None:
        trainer = self.trainers[rank]
        contribution = trainer.under_way
        assert contribution is not None
        assert outcome.samples == (contribution.samples if outcome.delta is None else 0)
        trainer.under_way, trainer.held = None, trainer.held + outcome.samples
        trainer.counted += contribution.samples - outcome.samples
        trainer.last_ns = self.now - trainer.begun_ns
        trainer.policy.append(self.members[rank].policy)
        trainer.outcomes.append((self.now, outcome))
        if outcome.delta is not None:
            trainer.model = trainer.model + outcome.delta
        if not self.dies and not self.members[rank].policy.measures_only:
            self._check_the_model(trainer, outcome)

    def _check_the_model(self, trainer: Trainer, outcome: AverageResult) -> None:
        """The mean of what all brought, and what was learnt meanwhile; the nth average of one rank
        is that of all where nobody is lost."""
        at = len(trainer.outcomes) - 1
        contribution = [each.contribution[at] for each in self.trainers.values()]
        weights = [each.samples for each in contribution]
        assert outcome.samples == 0
        assert (outcome.delta is None) == (sum(weights) == 0)
        if outcome.delta is not None:
            mean = np.average(
                [each.model.numpy() for each in contribution], axis=0, weights=weights
            )
            expected = torch.from_numpy(mean) + trainer.learnt_since
            assert torch.allclose(trainer.model, expected, rtol=0, atol=1e-9)

    def _check(self) -> None:
        lost = self.world_size - len(self.members)
        for rank, member in self.members.items():
            trainer = self.trainers[rank]
            trainer.check_the_books()
            assert member.policy.waits or not member.waits
            if (
                member.policy.waits
                and (not self.dies or self.policy_chooser is keep)
                and len(self.members) > 1
            ):
                assert trainer.steps_since <= member.policy.steps * (1 + lost), (
                    "once more for an average given up"
                )

    def made_after(self, when: int, agreed: Iterable[AveragingPolicy] = ()) -> dict[int, int]:
        """Averages that came about, by rank that is left; one that is only measured moves no model,
        so that where any may be, those without a delta count too."""
        may_be_measured = any(policy.measures_only for policy in agreed)
        return {
            rank: sum(
                at > when and (may_be_measured or outcome.delta is not None)
                for at, outcome in self.trainers[rank].outcomes
            )
            for rank in self.members
        }


@settings(max_examples=25, deadline=None)
@given(worlds, delays, steps, parts)
def test_what_is_learnt_stays_and_models_become_their_mean(
    world: int, times: list[int], each: int, part: float
) -> None:
    """Every model is checked at every average; then all average what they have while nobody
    learns."""
    run = Simulated(world, times, AveragingPolicy(each), part)
    run.run()
    assert min(run.made_after(0).values()) >= 3
    trainers = run.trainers.values()
    assert all(trainer.under_way is None for trainer in trainers)
    assert len({len(trainer.outcomes) for trainer in trainers}) == 1
    for rank, trainer in run.trainers.items():
        trainer.held, trainer.learnt_from = trainer.held + rank + 1, trainer.learnt_from + rank + 1
    mean = np.average(
        [trainer.model.numpy() for trainer in trainers], axis=0, weights=[t.held for t in trainers]
    )
    for rank, member in run.members.items():
        run.trainers[rank].steps_since += each
        member.record_steps(each, 1)
        run._post(rank, dies=False)
    run.drain()
    for trainer in trainers:
        torch.testing.assert_close(trainer.model, torch.from_numpy(mean), rtol=0, atol=1e-9)
        assert (trainer.held, trainer.counted) == (0, trainer.learnt_from)


@settings(max_examples=20, deadline=None)
@given(worlds, delays, steps, parts)
def test_where_ranks_wait_all_take_equally_many_steps(
    world: int, times: list[int], each: int, part: float
) -> None:
    """That nobody else ever waits is checked at every event."""
    run = Simulated(world, times, AveragingPolicy(each, AveragingMode.BLOCKING), part)
    run.run()
    assert min(run.made_after(0).values()) >= 3
    assert {taken for trainer in run.trainers.values() for taken in trainer.steps_brought} == {each}


@settings(max_examples=25, deadline=None)
@given(
    worlds,
    delays,
    parts,
    st.lists(policies, min_size=3, max_size=8),
)
def test_the_leaders_terms_reach_all_with_the_average_that_they_begin_with(
    world: int, times: list[int], part: float, agreed: list[AveragingPolicy]
) -> None:
    """And from then on ranks keep to them: where they are to wait, all have taken so many steps at
    the next one."""
    used = [agreed[0]]

    def policy_chooser(_measured: AverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
        assert policy == used[-1]
        used.append(agreed[len(used) % len(agreed)])
        return used[-1]

    run = Simulated(world, times, agreed[0], part, policy_chooser)
    run.run()
    assert len(used) >= 3
    for trainer in run.trainers.values():
        assert trainer.policy == used
        before = zip([agreed[0], *used], trainer.steps_brought, strict=False)
        assert all(taken == policy.steps for policy, taken in before if policy.waits)


@settings(max_examples=20, deadline=None)
@given(
    worlds, delays, steps, st.booleans(), st.lists(st.integers(5, LONGEST), min_size=6, max_size=6)
)
def test_the_leader_measures_steps_and_averages(
    world: int, times: list[int], each: int, waits: bool, speeds_ns: list[int]
) -> None:
    seen: list[AverageTiming] = []

    def policy_chooser(measured: AverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
        assert measured.average_ns == run.trainers[0].last_ns > 0
        seen.append(measured)
        return policy

    run = Simulated(
        world,
        times,
        AveragingPolicy(each, AveragingMode.BLOCKING if waits else AveragingMode.NONBLOCKING),
        policy_chooser=policy_chooser,
        speeds_ns=speeds_ns,
    )
    run.run()
    assert len(seen) >= 2
    assert len(seen) == len(run.trainers[0].outcomes) - 1
    speeds = dict(enumerate(speeds_ns[:world]))
    assert all(measured.step_ns.items() <= speeds.items() for measured in seen)
    assert seen[-1].step_ns
    assert not waits or seen[-1].step_ns == speeds


@settings(max_examples=60, deadline=None)
@given(
    worlds,
    delays,
    policies,
    parts,
    st.dictionaries(st.integers(0, 5), st.integers(0, 400), min_size=1, max_size=4),
)
def test_those_left_go_on_whoever_is_lost(
    world: int, times: list[int], agreed: AveragingPolicy, part: float, dies: dict[int, int]
) -> None:
    """The leader too, and before all have heard of an average; samples of one that is given up
    count again, once."""
    run = Simulated(
        world, times, agreed, part, dies={rank: when for rank, when in dies.items() if rank < world}
    )
    run.run()
    made = run.made_after(500, [agreed])
    assert len(run.members) < 2 or min(made.values(), default=0) >= 2, made
    for rank in run.members:
        trainer = run.trainers[rank]
        assert trainer.under_way is None
        assert trainer.steps >= 4, "also who is left alone"
        contribution = sum(each.samples for each in trainer.contribution)
        given_back = sum(outcome.samples for _, outcome in trainer.outcomes)
        assert contribution - given_back == trainer.counted == trainer.learnt_from - trainer.held


@settings(max_examples=60, deadline=None)
@given(
    worlds,
    delays,
    st.lists(policies, min_size=2, max_size=6),
    st.integers(0, 5),
)
def test_those_left_go_on_while_terms_change(
    world: int, times: list[int], agreed: list[AveragingPolicy], lost: int
) -> None:
    """The leader is lost when some have its new terms and others have not, and another one."""
    drawn = count(1)

    def policy_chooser(_measured: AverageTiming, _terms: AveragingPolicy) -> AveragingPolicy:
        return agreed[next(drawn) % len(agreed)]

    run = Simulated(world, times, agreed[0], 0.5, policy_chooser, dies={0: 200, lost % world: 400})
    run.run()
    made = run.made_after(500, agreed)
    assert len(run.members) < 2 or min(made.values(), default=0) >= 2, made


@pytest.mark.parametrize("timed", [True, False])
def test_an_average_that_is_only_timed_moves_nobody(timed: bool) -> None:
    """The leader knows what it took all the same, and what was learnt counts in the next."""
    measured: list[AverageTiming] = []

    def policy_chooser(of: AverageTiming, policy: AveragingPolicy) -> AveragingPolicy:
        measured.append(of)
        return policy

    run = Simulated(
        3,
        [5, 9, 2],
        AveragingPolicy(40 if timed else 1, AveragingMode.PAIRWISE),
        0.5,
        policy_chooser=policy_chooser,
    )
    run.run(until=2000)
    outcomes = [outcome for trainer in run.trainers.values() for _, outcome in trainer.outcomes]
    assert len(outcomes) > 5
    assert all((outcome.delta is None) == timed for outcome in outcomes)
    assert all((outcome.samples > 0) == timed for outcome in outcomes)
    assert all(each.average_ns > 0 for each in measured)
    assert len(measured) > 1
