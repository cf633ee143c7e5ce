"""What a server deals out, event by event, under the rules of who waits for whom: no sample is two
workers', and shares follow speeds."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.rules.backup_workers import BackupWorkersRule
from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.server_rule import Push, ServerUpdateRule
from laggard.workloads.balancing.allocation import AffineCost, allocate_samples, estimate_slowest_s
from laggard.workloads.balancing.cost_monitor import CostReport
from laggard.workloads.balancing.parameters import BalancedBatches
from laggard.workloads.balancing.server_balancer import ServerBalancer
from laggard.workloads.balancing.shares import Shares
from laggard.workloads.datasets.partition import Partition, split_evenly

BATCH = 96
USUAL, SLOW = AffineCost(0.003, 0.0003), AffineCost(0.012, 0.0012)

costs = st.builds(AffineCost, fixed_s=st.floats(0, 0.1), sample_s=st.floats(1e-5, 1e-2))


@dataclass
class Simulated:
    """Workers whose steps take what their costs say, who tell them exactly, and a server that takes
    no time."""

    rule: ServerUpdateRule
    partition: Partition
    costs: list[AffineCost]
    every: int = 8
    told: list[tuple[int, str]] = field(default_factory=list)
    dealt: dict[int, dict[int, range]] = field(default_factory=lambda: defaultdict(dict))
    gone: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        parameters = BalancedBatches(every=self.every)
        self.balancer = ServerBalancer(
            parameters, Shares(self.partition, 1), lambda step, told: self.told.append((step, told))
        )
        self.ranks = range(self.partition.world_size)
        self.events: list[tuple[float, int, int, int]] = []
        self.lives = dict.fromkeys(self.ranks, 0)
        for rank in self.ranks:
            self.begin(rank, 0, 0.0)

    def begin(self, rank: int, clock: int, now: float) -> None:
        part = self.balancer.assign_range(rank, clock)
        # A life that ended before it pushed a step may be followed by one that takes it again: then
        # with the same part.
        assert self.dealt[clock].get(rank, part) == part
        self.dealt[clock][rank] = part
        heapq.heappush(
            self.events,
            (now + self.costs[rank].estimate_s(len(part)), rank, clock, self.lives[rank]),
        )

    def run(self, pushes: int, churn: random.Random | None = None) -> None:
        for _ in range(pushes):
            now, rank, clock, life = heapq.heappop(self.events)
            if life == self.lives[rank] and rank not in self.gone:
                size = len(self.dealt[clock][rank])
                self.balancer.record_cost(rank, clock, CostReport(self.costs[rank]))
                reaction = self.rule.push(Push(rank, clock, size, self.partition.samples_in(clock)))
                self.follow(reaction.replies, now)
            if churn is not None and churn.random() < 0.1:
                self.turn(churn.choice(self.ranks), now)

    def turn(self, rank: int, now: float) -> None:
        """Who is there leaves, unless it is the last; who is not joins."""
        if rank in self.gone:
            self.gone.remove(rank)
            self.follow(self.rule.add_member(rank).replies, now)
        elif len(self.gone) + 1 < len(self.ranks):
            self.gone.add(rank)
            self.lives[rank] += 1
            self.balancer.remove_member(rank)
            self.follow(self.rule.remove_member(rank).replies, now)

    def follow(self, replies: tuple, now: float) -> None:
        for answer in replies:
            self.begin(answer.rank, answer.clock, now)

    def sizes(self, since: int = 0) -> dict[int, tuple[int, ...]]:
        """By clock, of those that all workers have begun."""
        whole = sorted(
            clock
            for clock, parts in self.dealt.items()
            if clock >= since and len(parts) == len(self.ranks)
        )
        return {
            clock: tuple(len(self.dealt[clock][rank]) for rank in self.ranks) for clock in whole
        }


def rules(world: int) -> list[ServerUpdateRule]:
    return [
        BoundedStalenessRule(world, 0),
        BoundedStalenessRule(world, 3),
        BackupWorkersRule(world, 1),
    ]


@given(
    st.lists(costs, min_size=2, max_size=5),
    st.integers(0, 2),
    st.integers(1, 8),
    st.integers(40, 500),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_every_sample_of_a_batch_is_one_workers(
    speeds: list[AffineCost], which: int, every: int, samples: int, churns: bool, seed: int
) -> None:
    """Whatever steps the workers are in, and whoever leaves and joins; speeds change all the
    time."""
    dice, world = random.Random(seed), len(speeds)
    simulated = Simulated(
        rules(world)[which], Partition(samples, min(BATCH, samples), world, 1), list(speeds), every
    )
    for _ in range(12):
        simulated.run(10, dice if churns else None)
        dice.shuffle(simulated.costs)
    assert len(simulated.dealt) > 2
    for clock, parts in simulated.dealt.items():
        taken = [place for part in parts.values() for place in part]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(range(simulated.partition.samples_in(clock)))
        if len(parts) == world:
            assert len(taken) == simulated.partition.samples_in(clock)


@pytest.mark.parametrize(
    ("rule", "steps"),
    list(zip(rules(3), (10, 10, 20), strict=True)),
    ids=["lockstep", "staleness 3", "backup"],
)
def test_shares_follow_a_change_of_speed(rule: ServerUpdateRule, steps: int) -> None:
    """Within ten steps; where the others go on without the slow one, it leaves steps out before it
    can say that it is slow."""
    simulated = Simulated(rule, Partition(10_000, BATCH, 3, 1), [USUAL, SLOW, USUAL])
    simulated.run(3 * 30)
    best = allocate_samples([USUAL, SLOW, USUAL], BATCH)
    sizes = simulated.sizes()
    assert max(sizes) >= 24
    assert sizes[max(sizes)] == best
    assert all(sizes[clock] == split_evenly(BATCH, 3) for clock in sizes if clock < 7)
    begun = max(simulated.dealt)
    simulated.costs = [USUAL, USUAL, SLOW]
    simulated.run(3 * (steps + 4))
    assert set(simulated.sizes(begun + steps).values()) == {
        allocate_samples(simulated.costs, BATCH)
    }
    first, sentence = simulated.told[0]
    assert next(iter(simulated.sizes(first).values())) == best
    then_ms, before_ms = (
        1e3 * estimate_slowest_s([USUAL, SLOW, USUAL], best),
        1e3 * SLOW.estimate_s(32),
    )
    assert (
        sentence
        == f"shares of {min(best)} to {max(best)} of 96 samples, by speed: the slowest rank's own"
        f" work takes {then_ms:.3g} ms instead of {before_ms:.3g} ms"
    )


def test_nothing_changes_before_all_know_what_their_steps_cost() -> None:
    noted: list[int] = []
    balancer = ServerBalancer(
        BalancedBatches(),
        Shares(Partition(960, BATCH, 2, 1), 1),
        lambda step, _: noted.append(step),
    )
    for step in range(20):
        balancer.record_cost(0, step, CostReport(USUAL))
        balancer.record_cost(1, step, CostReport())
        assert [balancer.assign_range(rank, step + 1) for rank in range(2)] == [
            range(48),
            range(48, 96),
        ]
    balancer.record_cost(1, 20, CostReport(SLOW))
    balancer.record_cost(0, 40, CostReport(USUAL))
    balancer.record_cost(1, 40, CostReport(SLOW))
    assert noted == [21]
    assert len(balancer.assign_range(1, 21)) < 24
    assert len(balancer.assign_range(1, 20)) == 48, (
        "whose step is an earlier one takes the part that it had then"
    )


@pytest.mark.parametrize(
    "found",
    [
        CostReport(),
        CostReport(USUAL, 0.0123, is_outlier=True),
        CostReport(AffineCost(0.0, 1e-15)),
        CostReport(AffineCost(300.0, 2.5)),
    ],
)
def test_what_a_rank_has_found_travels_in_whole_numbers(found: CostReport) -> None:
    assert CostReport.from_numbers(found.as_numbers) == found
    came = CostReport.from_integers(found.as_integers)
    assert (came.error, came.is_outlier) == (pytest.approx(found.error, abs=1e-6), found.is_outlier)
    assert (came.cost is None) == (found.cost is None)
    if came.cost is not None and found.cost is not None:
        assert came.cost.fixed_s == pytest.approx(found.cost.fixed_s, abs=1e-12)
        assert came.cost.sample_s == pytest.approx(found.cost.sample_s, abs=1e-12)
