"""Averaging in groups by itself: the generator's rule, the ring, and members under random delays and losses, the generator's too."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.workloads.strategies.group_member import GROUP, GroupMember, Outcome
from laggard.workloads.strategies.grouping import Group, GroupRule
from laggard.workloads.strategies.ring_average import RingAverage
from laggard.workloads.transport.frames import Message

delays = st.lists(st.integers(1, 60), min_size=40, max_size=40)
worlds = st.integers(2, 7)
sizes = st.integers(2, 4)


@dataclass
class Line:
    """Ranks whose steps take given times and whose groups take none: what the rule brings about."""

    world: int
    size: int
    patience: int
    times: list[int]
    dies: dict[int, int] = field(default_factory=dict)
    groups: list[tuple[int, Group]] = field(default_factory=list)
    steps: dict[int, int] = field(default_factory=dict)

    def run(self, until: int) -> None:
        rule = GroupRule(range(self.world), self.size, self.patience)
        self.steps = dict.fromkeys(range(self.world), 0)
        events = [(self.delay(rank), rank) for rank in self.steps]
        events += [(when, -1 - rank) for rank, when in self.dies.items()]
        heapq.heapify(events)
        waiting: set[int] = set()
        while events:
            now, rank = heapq.heappop(events)
            if rank < 0:
                self.steps.pop(-1 - rank)
                waiting.discard(-1 - rank)
                formed = rule.leave(-1 - rank)
            elif rank not in self.steps or now >= until:
                continue
            else:
                waiting.add(rank)
                formed = rule.ready(rank)
            for group in formed:
                assert waiting >= set(group.members), "nobody is in two groups at once"
                assert group.last == (rank if rank >= 0 else -1 - rank)
                assert len(group.members) == min(self.size, len(self.steps))
                self.groups.append((now, group))
                for member in group.members:
                    waiting.remove(member)
                    self.steps[member] += 1
                    heapq.heappush(events, (now + self.delay(member), member))

    def delay(self, rank: int) -> int:
        return self.times[(rank * 7 + self.steps[rank] * 11) % len(self.times)]


@settings(max_examples=30, deadline=None)
@given(worlds, sizes, st.integers(0, 20), delays)
def test_everybody_is_grouped_again_and_again(world: int, size: int, patience: int, times: list[int]) -> None:
    line = Line(world, size, patience, times)
    line.run(until=3000)
    # At worst all wait for the slowest each time.
    assert min(line.steps.values()) >= 3000 // 60 // (world + 1)
    assert [group.number for _, group in line.groups] == list(range(1, len(line.groups) + 1))


@settings(max_examples=30, deadline=None)
@given(worlds, sizes, st.integers(0, 20), delays)
def test_models_mix_within_the_promised_number_of_groups(
    world: int, size: int, patience: int, times: list[int]
) -> None:
    """Any so many groups hold as many as join all ranks; the mean is kept by each, and the spread shrinks."""
    line = Line(world, size, patience, times)
    line.run(until=3000)
    promised = 2 * (patience + world - 1)
    members = [group.members for _, group in line.groups]
    for start in range(0, len(members) - promised, max(1, promised // 3)):
        assert connected(world, members[start : start + promised])
    whole = np.eye(world)
    for group in members:
        mixing = np.eye(world)
        mixing[np.ix_(group, group)] = 1 / len(group)
        np.testing.assert_allclose(mixing.sum(axis=0), 1.0)
        np.testing.assert_allclose(mixing.sum(axis=1), 1.0)
        whole = mixing @ whole
    assert whole[:, 0].max() - whole[:, 0].min() < 0.1 or len(members) < 8 * promised


def connected(world: int, groups: list[tuple[int, ...]]) -> bool:
    label = list(range(world))
    for group in groups:
        joined = {label[rank] for rank in group}
        label = [label[group[0]] if each in joined else each for each in label]
    return len(set(label)) == 1


def test_who_is_slow_is_not_waited_for_until_models_must_mix() -> None:
    """Rank 3 takes a hundred times as long: the others make groups of their own, 20 of them, before they wait for it."""
    rule = GroupRule(range(4), 2, 20)
    numbers: list[int] = []
    for turn in range(60):
        numbers += [group.number for group in rule.ready(turn % 3)]
    assert len(numbers) == 20
    first, second = rule.ready(3)
    assert 3 in first.members
    assert 3 not in second.members
    assert (first.last, second.last) == (3, 3), "that one was held back for it too"


@settings(max_examples=30, deadline=None)
@given(worlds, sizes, st.integers(0, 6), delays, st.dictionaries(st.integers(0, 6), st.integers(0, 900), max_size=4))
def test_nobody_waits_for_who_is_gone(
    world: int, size: int, patience: int, times: list[int], dies: dict[int, int]
) -> None:
    line = Line(world, size, patience, times, {rank: when for rank, when in dies.items() if rank < world})
    line.run(until=3000)
    late = {member for now, group in line.groups if now > 2000 for member in group.members}
    assert late == set(line.steps)


@pytest.mark.parametrize("length", [1, 2, 5, 100])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_the_ring_makes_the_mean_the_same_on_all(world: int, length: int) -> None:
    """Also of vectors shorter than the ring; each member sends what an optimal all-reduce does."""
    random = torch.Generator().manual_seed(world * 100 + length)
    vectors = torch.rand((world, length), generator=random)
    members = tuple(range(10, 10 + world))
    rings = {rank: RingAverage(members, rank, vectors[rank - 10]) for rank in members}
    line = [(rings[rank].next, chunk) for rank in members if (chunk := rings[rank].begin()) is not None]
    while line:
        rank, chunk = line.pop(0)
        answer = rings[rank].hear(chunk.part)
        if answer is not None:
            line.append((rings[rank].next, answer))
    means = [rings[rank].mean for rank in members]
    assert all(rings[rank].complete for rank in members)
    assert all(torch.equal(mean, means[0]) for mean in means)
    torch.testing.assert_close(means[0], vectors.mean(dim=0))
    assert sum(ring.payload_bytes for ring in rings.values()) == 2 * (world - 1) * length * 4


@dataclass
class Members:
    """Members, connections that keep order and take time, and losses, event by event."""

    world: int
    size: int
    times: list[int]
    dies: dict[int, int] = field(default_factory=dict)
    now: int = 0
    members: dict[int, GroupMember] = field(init=False)
    steps: dict[int, int] = field(init=False)
    models: dict[int, torch.Tensor] = field(init=False)
    outcomes: list[tuple[int, Outcome]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks = range(self.world)
        self.members = {rank: GroupMember(rank, self.world, self.size, 4) for rank in ranks}
        self.steps = dict.fromkeys(ranks, 0)
        self.models = {rank: torch.tensor([rank, 1.0, -rank], dtype=torch.float64) for rank in ranks}
        self._ticks, self._drawn = count(), count()
        self._free: dict[tuple[int, int], int] = {}
        self._events: list[tuple[int, int, int, int, Message | None]] = []

    def run(self, until: int) -> None:
        for rank in self.members:
            self._push(self.draw(), rank, rank, None)
        deaths = sorted((when, rank) for rank, when in self.dies.items())
        while self._events:
            if deaths and self._events[0][0] >= deaths[0][0]:
                self._die(*deaths.pop(0))
                continue
            self.now, _, rank, sender, message = heapq.heappop(self._events)
            if rank not in self.members:
                continue
            if message is not None:
                self.members[rank].hear(message, self.now)
            elif sender != rank:
                self.members[rank].leave(sender, self.now)
            elif self.now < until:
                self.members[rank].ask(self.models[rank], self.now)
            self._follow(rank)

    def draw(self) -> int:
        return self.times[next(self._drawn) * 7 % len(self.times)]

    def _push(self, at: int, rank: int, sender: int, message: Message | None) -> None:
        heapq.heappush(self._events, (at, next(self._ticks), rank, sender, message))

    def _die(self, when: int, rank: int) -> None:
        self.now = max(self.now, when)
        del self.members[rank]
        for other in self.members:
            self._push(self._arrival(rank, other), other, rank, None)

    def _arrival(self, src: int, dst: int) -> int:
        self._free[src, dst] = max(self._free.get((src, dst), 0), self.now + self.draw())
        return self._free[src, dst]

    def _follow(self, rank: int) -> None:
        member = self.members[rank]
        while member.outbox:
            to, message = member.outbox.popleft()
            sent = Message(message.kind, message.version, message.values, message.tensor, rank)
            self._push(self._arrival(rank, to), to, rank, sent)
        outcome = member.take_outcome()
        if outcome is not None:
            self.outcomes.append((rank, outcome))
            self.models[rank] = outcome.model
            self.steps[rank] += 1
            self._push(self.now + self.draw(), rank, rank, None)


@settings(max_examples=40, deadline=None)
@given(worlds, sizes, delays)
def test_groups_keep_the_mean_and_make_models_one(world: int, size: int, times: list[int]) -> None:
    run = Members(world, size, times)
    mean = torch.stack(list(run.models.values())).mean(dim=0)
    run.run(until=12_000)
    assert min(run.steps.values()) >= 5
    models = torch.stack(list(run.models.values()))
    spread = (models.max(dim=0).values - models.min(dim=0).values).max()
    assert spread < 0.2 * world
    assert all(outcome.waited_for != rank for rank, outcome in run.outcomes)
    assert all(outcome.payload_bytes > 0 for _, outcome in run.outcomes)
    torch.testing.assert_close(models.mean(dim=0), mean, rtol=0, atol=1e-9)


@settings(max_examples=40, deadline=None)
@given(worlds, sizes, delays, st.dictionaries(st.integers(0, 6), st.integers(0, 1500), min_size=1, max_size=4))
def test_no_group_hangs_whoever_is_lost(world: int, size: int, times: list[int], dies: dict[int, int]) -> None:
    """Rank 0, the generator, too: those who are left go on, for as long as the simulation does."""
    run = Members(world, size, times, {rank: when for rank, when in dies.items() if rank < world})
    before = {rank: float(vector[0]) for rank, vector in run.models.items()}
    run.run(until=8000)
    early = dict(run.steps)
    assert all(early[rank] >= 5 for rank in run.members), early
    for vector in run.models.values():
        # Whatever was left in the midst: a model is always a mean of models, its weights sum to one.
        assert float(vector[1]) == pytest.approx(1.0)
        assert min(before.values()) - 1e-9 <= float(vector[0]) <= max(before.values()) + 1e-9


def test_who_asks_a_generator_that_does_not_know_yet_is_heard_when_it_does() -> None:
    second, third = GroupMember(1, 3, 2, 4), GroupMember(2, 3, 2, 4)
    third.ask(torch.ones(2), 0)
    assert third.outbox.popleft()[0] == 0
    third.leave(0, 1)
    to, asked = third.outbox.popleft()
    assert to == 1
    second.hear(Message(asked.kind, sender=2), 2)
    second.ask(torch.zeros(2), 3)
    assert [to for to, _ in second.outbox] == [0]
    second.outbox.clear()
    second.leave(0, 4)
    kinds = [(to, message.kind) for to, message in second.outbox]
    assert kinds[0] == (2, GROUP)
