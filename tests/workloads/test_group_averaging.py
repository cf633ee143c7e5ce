"""Averaging in groups by itself: the generator's rule, the ring, and members under random delays
and losses, the generator's too."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import count
from operator import itemgetter

import numpy as np
import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

from laggard.core.rules.partial_reduce import AveragingGroup, GroupRule
from laggard.workloads.strategies.peer.group_member import GROUP, GroupAverageResult, GroupMember
from laggard.workloads.strategies.peer.ring_average import RingAverage
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
    groups: list[tuple[int, AveragingGroup]] = field(default_factory=list)
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
                formed = rule.remove_member(-1 - rank)
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
def test_everybody_is_grouped_again_and_again(
    world: int, size: int, patience: int, times: list[int]
) -> None:
    line = Line(world, size, patience, times)
    line.run(until=3000)
    # At worst all wait for the slowest each time.
    assert min(line.steps.values()) >= 3000 // 60 // (world + 1)
    assert [group.number for _, group in line.groups] == list(range(1, len(line.groups) + 1))


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(worlds, sizes, st.integers(0, 20), delays)
def test_models_mix_within_the_promised_number_of_groups(
    world: int, size: int, patience: int, times: list[int]
) -> None:
    """Any so many groups hold as many as join all ranks; the mean is kept by each, and the spread
    shrinks."""
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
    """Rank 3 takes a hundred times as long: the others make groups of their own, 20 of them, before
    they wait for it."""
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
@given(
    worlds,
    sizes,
    st.integers(0, 6),
    delays,
    st.dictionaries(st.integers(0, 6), st.integers(0, 900), max_size=4),
)
def test_nobody_waits_for_who_is_gone(
    world: int, size: int, patience: int, times: list[int], dies: dict[int, int]
) -> None:
    line = Line(
        world, size, patience, times, {rank: when for rank, when in dies.items() if rank < world}
    )
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
    line = [
        (rings[rank].next, chunk) for rank in members if (chunk := rings[rank].begin()) is not None
    ]
    while line:
        rank, chunk = line.pop(0)
        answer = rings[rank].receive(chunk.part)
        if answer is not None:
            line.append((rings[rank].next, answer))
    means = [rings[rank].mean for rank in members]
    assert all(rings[rank].complete for rank in members)
    assert all(torch.equal(mean, means[0]) for mean in means)
    torch.testing.assert_close(means[0], vectors.mean(dim=0))
    assert sum(ring.payload_bytes for ring in rings.values()) == 2 * (world - 1) * length * 4


@dataclass
class Life:
    """One process of a rank: its member, what it knows of the others, and what it is to do next."""

    rank: int
    session: int
    member: GroupMember
    lives: dict[int, int]
    """Sessions of those whose connections it has."""

    unmet: set[int] = field(default_factory=set)
    """Who has not welcomed it yet: it does not listen to them, and asks for nothing."""

    ready: bool = False
    """It has done a step, and would ask."""

    steps: int = 0


class Event(Enum):
    STEP = auto()
    MESSAGE = auto()
    LOSS = auto()
    JOINS = auto()
    WELCOMES = auto()


@dataclass
class Members:
    """Members, connections between their lives that keep order and take time, losses, and ranks
    that come back, event by event.

    As with real connections, what an older life of a rank sent may come after a newer one has
    joined; that one is gone is not told any more then.
    """

    world: int
    size: int
    times: list[int]
    dies: dict[int, int] = field(default_factory=dict)
    joins: dict[int, int] = field(default_factory=dict)
    now: int = 0
    here: dict[int, Life] = field(init=False)
    models: dict[int, torch.Tensor] = field(init=False)
    sessions: dict[int, int] = field(default_factory=dict)
    outcomes: list[tuple[int, GroupAverageResult]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ticks, self._drawn = count(), count()
        self._free: dict[tuple[tuple[int, int], tuple[int, int]], int] = {}
        self._events: list[tuple[int, int, Event, tuple[int, int], int, int, Message | None]] = []
        everybody = dict.fromkeys(range(self.world), 0)
        self.here = {rank: self._born(rank, everybody) for rank in everybody}
        self.registered = dict(everybody)
        self.models = {
            rank: torch.tensor([rank, 1.0, -rank], dtype=torch.float64) for rank in everybody
        }

    def _born(self, rank: int, sessions: dict[int, int]) -> Life:
        others = {other: session for other, session in sessions.items() if other != rank}
        return Life(rank, sessions[rank], GroupMember(rank, sessions, self.size, 4), others)

    @property
    def steps(self) -> dict[int, int]:
        return {rank: life.steps for rank, life in self.here.items()}

    def run(self, until: int) -> None:
        for life in self.here.values():
            self._push(self.draw(), Event.STEP, life, life)
        turns = sorted(
            [(when, rank, self._die) for rank, when in self.dies.items()], key=itemgetter(0, 1)
        )
        turns += [(when, rank, self._come) for rank, when in self.joins.items()]
        turns.sort(key=itemgetter(0, 1))
        while self._events or turns:
            if turns and (not self._events or self._events[0][0] >= turns[0][0]):
                when, rank, turn = turns.pop(0)
                self.now = max(self.now, when)
                turn(rank)
                continue
            self.now, _, event, (rank, session), sender, its_session, message = heapq.heappop(
                self._events
            )
            life = self.here.get(rank)
            if life is not None and life.session == session:
                self._happens(event, life, sender, its_session, message, until)
                self._follow(life)

    def _happens(
        self,
        event: Event,
        life: Life,
        sender: int,
        session: int,
        message: Message | None,
        until: int,
    ) -> None:
        if event is Event.STEP:
            life.ready = self.now < until
        elif event is Event.MESSAGE and sender not in life.unmet:
            assert message is not None
            life.member.receive(message, self.now)
        elif event is Event.LOSS and life.lives.get(sender) == session:
            del life.lives[sender]
            life.unmet.discard(sender)
            if self.registered.get(sender) == session:
                del self.registered[sender]
            life.member.remove_member(sender, self.now)
        elif event is Event.JOINS:
            life.lives[sender] = session
            life.unmet.discard(sender)
            self._push(0, Event.WELCOMES, life, self.here.get(sender))
            life.member.add_member(sender, session, self.now)
        elif event is Event.WELCOMES:
            life.unmet.discard(sender)
        if life.ready and not life.unmet:
            life.ready = False
            life.member.request_group(self.models[life.rank], self.now)

    def draw(self) -> int:
        return self.times[next(self._drawn) * 7 % len(self.times)]

    def _push(
        self, at: int, event: Event, src: Life, dst: Life | None, message: Message | None = None
    ) -> None:
        """At a time, or when what is sent now arrives."""
        if dst is None:
            return
        connection = ((src.rank, src.session), (dst.rank, dst.session))
        if not at:
            self._free[connection] = at = max(self._free.get(connection, 0), self.now + self.draw())
        heapq.heappush(
            self._events,
            (at, next(self._ticks), event, connection[1], src.rank, src.session, message),
        )

    def _die(self, rank: int) -> None:
        gone = self.here.pop(rank, None)
        for other in self.here.values():
            if gone is not None:
                self._push(0, Event.LOSS, gone, other)

    def _come(self, rank: int) -> None:
        """A new life, where there is none: it puts itself down, then tells all who are put down."""
        if rank in self.here or not self.here:
            return
        host = self.here[min(self.here)]
        session = self.sessions[rank] = self.sessions.get(rank, 0) + 1
        others = {other: each for other, each in self.registered.items() if other != rank}
        self.registered[rank] = session
        life = self.here[rank] = self._born(rank, {**others, rank: session})
        life.unmet = set(others)
        self.models[rank] = self.models[host.rank]
        for other, each in others.items():
            present = self.here.get(other)
            if present is not None and present.session == each:
                self._push(0, Event.JOINS, life, present)
            else:
                self._push(0, Event.LOSS, Life(other, each, life.member, {}), life)
        self._push(self.now + self.draw(), Event.STEP, life, life)

    def _follow(self, life: Life) -> None:
        member = life.member
        while member.outbox:
            to, message = member.outbox.popleft()
            sent = Message(message.kind, message.version, message.values, message.tensor, life.rank)
            present = self.here.get(to)
            if present is not None and life.lives.get(to) == present.session:
                self._push(0, Event.MESSAGE, life, present, sent)
        outcome = member.take_outcome()
        if outcome is not None:
            self.outcomes.append((life.rank, outcome))
            self.models[life.rank] = outcome.model
            life.steps += 1
            self._push(self.now + self.draw(), Event.STEP, life, life)


@pytest.mark.long
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
@given(
    worlds,
    sizes,
    delays,
    st.dictionaries(st.integers(0, 6), st.integers(0, 1500), min_size=1, max_size=4),
)
def test_no_group_hangs_whoever_is_lost(
    world: int, size: int, times: list[int], dies: dict[int, int]
) -> None:
    """Rank 0, the generator, too: those who are left go on, for as long as the simulation does."""
    run = Members(world, size, times, {rank: when for rank, when in dies.items() if rank < world})
    before = {rank: float(vector[0]) for rank, vector in run.models.items()}
    run.run(until=8000)
    assert all(steps >= 5 for steps in run.steps.values()), run.steps
    for vector in run.models.values():
        # Whatever was left in the midst: a model is always a mean of models, its weights sum to
        # one.
        assert float(vector[1]) == pytest.approx(1.0)
        assert min(before.values()) - 1e-9 <= float(vector[0]) <= max(before.values()) + 1e-9


turns = st.dictionaries(st.integers(0, 6), st.integers(0, 1500), min_size=1, max_size=4)


@pytest.mark.long
@settings(max_examples=40)
@given(
    worlds,
    sizes,
    delays,
    turns,
    st.dictionaries(st.integers(0, 6), st.integers(1, 300), min_size=1, max_size=4),
)
def test_no_group_hangs_whoever_is_lost_and_comes_back(
    world: int, size: int, times: list[int], dies: dict[int, int], away: dict[int, int]
) -> None:
    """The generator too, and lower ranks than it; before the others have missed them, and before
    all have heard that they are back."""
    dies = {rank: when for rank, when in dies.items() if rank < world}
    joins = {rank: dies[rank] + after for rank, after in away.items() if rank in dies}
    run = Members(world, size, times, dies, joins)
    run.run(until=6000)
    if run.here and min(run.here) in joins:
        event("a rank that came back is the generator in the end")
    assert all(steps >= 5 for steps in run.steps.values()), run.steps
    for vector in run.models.values():
        assert float(vector[1]) == pytest.approx(1.0)
    late = {
        rank
        for rank, outcome in run.outcomes
        if outcome.payload_bytes and outcome.grouped_ns > 3000
    }
    assert late == (set(run.here) if len(run.here) > 1 else set())


def test_who_asks_a_generator_that_does_not_know_yet_is_heard_when_it_does() -> None:
    second, third = (GroupMember(rank, dict.fromkeys(range(3), 0), 2, 4) for rank in (1, 2))
    third.request_group(torch.ones(2), 0)
    assert third.outbox.popleft()[0] == 0
    third.remove_member(0, 1)
    to, asked = third.outbox.popleft()
    assert to == 1
    second.receive(Message(asked.kind, sender=2), 2)
    second.request_group(torch.zeros(2), 3)
    assert [to for to, _ in second.outbox] == [0]
    second.outbox.clear()
    second.remove_member(0, 4)
    kinds = [(to, message.kind) for to, message in second.outbox]
    assert kinds[0] == (2, GROUP)
