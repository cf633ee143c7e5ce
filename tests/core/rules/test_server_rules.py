"""The servers' rules by themselves: bounds under random delays, order statistics, who is left."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.rules.backup_workers import BackupWorkersRule
from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.server_rule import Push, Reaction, ServerUpdateRule
from laggard.core.span_schema import NOBODY

Delay = Callable[[int, int], float]


@dataclass
class Simulated:
    """Workers whose steps take given times, and a server that takes none: what a rule brings about,
    event by event."""

    rule: ServerUpdateRule
    world_size: int
    delay: Delay
    clocks: dict[int, int] = field(init=False)
    waiting: set[int] = field(default_factory=set)
    pushed: list[tuple[int, int]] = field(default_factory=list)
    applied: list[tuple[int, int]] = field(default_factory=list)
    updates: list[tuple[float, tuple[Push, ...]]] = field(default_factory=list)
    seen: dict[tuple[int, int], frozenset[tuple[int, int]]] = field(default_factory=dict)
    widest: int = 0

    def __post_init__(self) -> None:
        self.clocks = dict.fromkeys(range(self.world_size), 0)
        self.seen = {(rank, 0): frozenset() for rank in self.clocks}

    def run(self, steps: int) -> None:
        """Until every worker but one that waits for ever has come to a clock."""
        events = [(self.delay(rank, 0), rank) for rank in self.clocks]
        heapq.heapify(events)
        while events:
            now, rank = heapq.heappop(events)
            if self.clocks[rank] >= steps:
                continue
            self.waiting.add(rank)
            reaction = self.rule.push(Push(rank, self.clocks[rank], 1, self.world_size))
            for each in self.follow(reaction, now):
                heapq.heappush(events, (now + self.delay(each, self.clocks[each]), each))

    def follow(self, reaction: Reaction, now: float) -> list[int]:
        for update in reaction.updates:
            self.updates.append((now, update.pushes))
            self.applied += [(push.rank, push.clock) for push in update.pushes]
        for answer in reaction.replies:
            self.waiting.remove(answer.rank)
            self.clocks[answer.rank] = answer.clock
            self.seen[answer.rank, answer.clock] = frozenset(self.applied)
        working = [clock for rank, clock in self.clocks.items() if rank not in self.waiting]
        least = min(self.clocks.values(), default=0)
        self.widest = max([self.widest, *(clock - least for clock in working)])
        return [answer.rank for answer in reaction.replies]

    def run_with_churn(self, steps: int, turns: list[tuple[int, int]]) -> set[int]:
        """Until nothing happens any more; at each turn a rank that is there leaves, and one that is
        not joins. Returns who is there."""
        here, lives = set(self.clocks), dict.fromkeys(self.clocks, 0)
        events = [(float(self.delay(rank, 0)), 1, rank, 0) for rank in here]
        events += [(float(at), 0, rank, -1) for at, rank in turns]
        heapq.heapify(events)
        while events:
            now, _, rank, life = heapq.heappop(events)
            if life < 0 and rank in here:
                here.remove(rank)
                self.waiting.discard(rank)
                self.clocks.pop(rank, None)
                reaction = self.rule.remove_member(rank)
            elif life < 0:
                here.add(rank)
                self.waiting.add(rank)
                lives[rank] += 1
                reaction = self.rule.add_member(rank)
            elif rank in here and life == lives[rank] and self.clocks[rank] < steps:
                self.waiting.add(rank)
                self.pushed.append((rank, self.clocks[rank]))
                reaction = self.rule.push(Push(rank, self.clocks[rank], 1, self.world_size))
            else:
                continue
            for each in self.follow(reaction, now):
                heapq.heappush(
                    events, (now + self.delay(each, self.clocks[each]), 1, each, lives[each])
                )
        return here


delays = st.lists(st.integers(1, 50), min_size=200, max_size=200)
all_turns = st.lists(st.tuples(st.integers(0, 400), st.integers(0, 4)), max_size=12)


@given(st.integers(1, 5), st.integers(0, 6), delays)
def test_nobody_is_ahead_by_more_than_the_bound(
    world: int, staleness: int, times: list[int]
) -> None:
    simulated = Simulated(
        BoundedStalenessRule(world, staleness), world, lambda r, c: times[(r * 37 + c * 11) % 200]
    )
    simulated.run(steps=12)
    assert simulated.widest <= staleness
    assert len(set(simulated.applied)) == len(simulated.applied)
    for (rank, clock), seen in simulated.seen.items():
        # What SSP guarantees (Ho et al., section 3): everything that is old enough, and one's own;
        # and nothing from beyond the window.
        assert {(r, c) for r in range(world) for c in range(clock - staleness)} <= seen
        assert {(rank, c) for c in range(clock)} <= seen
        assert all(c < clock + staleness for _, c in seen)


@given(st.integers(1, 5), delays)
def test_without_staleness_whole_batches_are_summed_by_rank(world: int, times: list[int]) -> None:
    simulated = Simulated(
        BoundedStalenessRule(world, 0), world, lambda r, c: times[(r * 37 + c * 11) % 200]
    )
    simulated.run(steps=8)
    for clock, (_, pushes) in enumerate(simulated.updates):
        assert [(push.rank, push.clock) for push in pushes] == [
            (rank, clock) for rank in range(world)
        ]


def test_the_bound_is_reached_and_who_is_waited_for_is_the_slow_one() -> None:
    rule = BoundedStalenessRule(2, 2)
    for clock in range(3):
        (answer,) = rule.push(Push(0, clock, 1, 2)).replies if clock < 2 else (None,)
        assert answer is None or (answer.clock, answer.waited_for) == (clock + 1, NOBODY)
    assert rule.push(Push(0, 2, 1, 2)).replies == ()
    freed = rule.push(Push(1, 0, 1, 2)).replies
    assert [(answer.rank, answer.clock, answer.waited_for) for answer in freed] == [
        (0, 3, 1),
        (1, 1, NOBODY),
    ]


@given(st.integers(1, 5), delays)
def test_without_a_bound_nobody_waits(world: int, times: list[int]) -> None:
    simulated = Simulated(
        BoundedStalenessRule(world, None), world, lambda r, c: times[(r * 37 + c * 11) % 200]
    )
    simulated.run(steps=10)
    assert all(len(pushes) == 1 for _, pushes in simulated.updates)
    for rank in range(world):
        mine = [now for now, (push,) in simulated.updates if push.rank == rank]
        expected = [sum(times[(rank * 37 + c * 11) % 200] for c in range(k + 1)) for k in range(10)]
        assert mine == expected


@given(st.integers(2, 6), st.integers(0, 3), delays)
def test_a_step_with_backups_ends_with_its_nth_gradient(
    world: int, backups: int, times: list[int]
) -> None:
    """However late the others: also for workers that were dropped, and began a step in its
    midst."""
    needed = max(1, world - backups)
    finished: dict[int, list[float]] = {}

    class Timed(Simulated):
        def follow(self, reaction: Reaction, now: float) -> list[int]:
            freed = super().follow(reaction, now)
            for rank in freed:
                finished.setdefault(self.clocks[rank], []).append(
                    now + self.delay(rank, self.clocks[rank])
                )
            return freed

    def delay(rank: int, clock: int) -> float:
        return times[(rank * 37 + clock * 11) % 200] + rank / 1000  # no two at once

    simulated = Timed(BackupWorkersRule(world, world - needed), world, delay)
    finished[0] = [delay(rank, 0) for rank in range(world)]
    simulated.run(steps=12)
    assert len(simulated.updates) == 12
    for clock, (now, pushes) in enumerate(simulated.updates):
        assert now == sorted(finished[clock])[needed - 1]
        assert [push.rank for push in pushes] == sorted(push.rank for push in pushes)
        assert len(pushes) == needed


def test_late_gradients_are_dropped_and_their_workers_catch_up() -> None:
    rule = BackupWorkersRule(3, 1)
    assert rule.push(Push(2, 0, 1, 3)) == Reaction()
    first = rule.push(Push(0, 0, 1, 3))
    assert [push.rank for push in first.updates[0].pushes] == [0, 2]
    assert [(a.rank, a.clock, a.waited_for) for a in first.replies] == [(0, 1, NOBODY), (2, 1, 0)]
    rule.push(Push(0, 1, 1, 3))
    rule.push(Push(2, 1, 1, 3))
    late = rule.push(Push(1, 0, 1, 3))
    assert late.updates == ()
    assert [(a.rank, a.clock, a.skipped) for a in late.replies] == [(1, 2, 1)]


def test_who_leaves_is_not_waited_for() -> None:
    rule: ServerUpdateRule = BoundedStalenessRule(3, 0)
    rule.push(Push(0, 0, 1, 3))
    rule.push(Push(1, 0, 1, 3))
    reaction = rule.remove_member(2)
    assert [push.rank for push in reaction.updates[0].pushes] == [0, 1]
    assert reaction.updates[0].fraction == pytest.approx(2 / 3)
    assert [answer.rank for answer in reaction.replies] == [0, 1]
    rule = BackupWorkersRule(3, 1)
    rule.push(Push(0, 0, 1, 3))
    assert rule.remove_member(1) == Reaction()
    assert [answer.rank for answer in rule.remove_member(2).replies] == [0]
    assert math.isclose(rule.push(Push(0, 1, 1, 3)).updates[0].fraction, 1.0)


@given(st.integers(1, 5), st.integers(0, 4), delays, all_turns)
def test_bounds_hold_and_nobody_waits_for_ever_when_workers_leave_and_join(
    world: int, staleness: int, times: list[int], turns: list[tuple[int, int]]
) -> None:
    turns = [(at, rank) for at, rank in turns if rank < world]
    simulated = Simulated(
        BoundedStalenessRule(world, staleness), world, lambda r, c: times[(r * 37 + c * 11) % 200]
    )
    here = simulated.run_with_churn(12, turns)
    assert simulated.widest <= staleness
    assert len(set(simulated.pushed)) == len(simulated.pushed), (
        "nobody does again what it has done before"
    )
    assert len(set(simulated.applied)) == len(simulated.applied)
    for (rank, clock), seen in simulated.seen.items():
        assert all(c < clock + staleness for _, c in seen)
        assert (rank, clock - 1) in seen or (rank, clock - 1) not in simulated.pushed
    if here:
        assert not simulated.waiting
        assert all(simulated.clocks[rank] >= 12 for rank in here)
        assert sorted(simulated.pushed) == sorted(simulated.applied)


@given(st.integers(1, 5), delays, all_turns)
def test_who_joins_where_nobody_waits_begins_with_the_slowest(
    world: int, times: list[int], turns: list[tuple[int, int]]
) -> None:
    turns = [(at, rank) for at, rank in turns if rank < world]
    simulated = Simulated(
        BoundedStalenessRule(world, None), world, lambda r, c: times[(r * 37 + c * 11) % 200]
    )
    here = simulated.run_with_churn(10, turns)
    assert not simulated.waiting
    assert simulated.pushed == simulated.applied
    assert len(set(simulated.pushed)) == len(simulated.pushed)
    assert all(simulated.clocks[rank] >= 10 for rank in here)


@given(st.integers(1, 5), st.integers(0, 3), delays, all_turns)
def test_steps_with_backups_go_on_when_workers_leave_and_join(
    world: int, backups: int, times: list[int], turns: list[tuple[int, int]]
) -> None:
    turns = [(at, rank) for at, rank in turns if rank < world]
    backups = min(backups, world - 1)
    simulated = Simulated(
        BackupWorkersRule(world, backups), world, lambda r, c: times[(r * 37 + c * 11) % 200]
    )
    here = simulated.run_with_churn(12, turns)
    assert len(set(simulated.applied)) == len(simulated.applied)
    for clock, (_, pushes) in enumerate(simulated.updates):
        assert {push.clock for push in pushes} == {clock}
        assert 1 <= len(pushes) <= world - backups
    if here:
        assert not simulated.waiting
        assert all(simulated.clocks[rank] >= 12 for rank in here)


def test_who_comes_back_does_not_push_what_it_has_pushed() -> None:
    """Its gradient of a step that others are in still stays; it is answered when that step is
    over."""
    rule: ServerUpdateRule = BoundedStalenessRule(3, 0)
    rule.push(Push(2, 0, 1, 3))
    rule.remove_member(2)
    assert rule.add_member(2) == Reaction()
    assert rule.push(Push(0, 0, 1, 3)) == Reaction()
    over = rule.push(Push(1, 0, 1, 3))
    assert [push.rank for push in over.updates[0].pushes] == [0, 1, 2]
    assert [(answer.rank, answer.clock) for answer in over.replies] == [(0, 1), (1, 1), (2, 1)]
    rule = BackupWorkersRule(3, 0)
    rule.push(Push(2, 0, 1, 3))
    rule.remove_member(2)
    assert rule.add_member(2) == Reaction()
    rule.push(Push(0, 0, 1, 3))
    assert [(answer.rank, answer.clock) for answer in rule.push(Push(1, 0, 1, 3)).replies] == [
        (0, 1),
        (1, 1),
        (2, 1),
    ]


def test_who_was_absent_begins_where_the_slowest_is() -> None:
    rule = BoundedStalenessRule(3, 2)
    assert rule.remove_member(2) == Reaction()
    for clock in range(2):
        rule.push(Push(0, clock, 1, 3))
    rule.push(Push(1, 0, 1, 3))
    assert [(each.rank, each.clock) for each in rule.add_member(2).replies] == [(2, 1)]
    assert rule.push(Push(0, 2, 1, 3)).replies[0].clock == 3
    assert rule.push(Push(0, 3, 1, 3)).replies == (), "it is waited for from now on"
