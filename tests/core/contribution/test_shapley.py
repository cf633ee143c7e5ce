"""Shapley shares against brute force over all orders, and their properties."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.detection.families import COMPUTE
from laggard.analysis.detection.lockstep.local_work import LocalWorkDetector
from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Noise,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.analysis.replay.lockstep.lockstep_analysis import build_lockstep_analysis
from laggard.analysis.replay.lockstep.lockstep_replay import LockstepReplay
from laggard.analysis.tables.columns import BoolArray, FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.contribution import shapley as module
from laggard.core.contribution.shapley import compute_shapley
from tests.analysis.traces import CONTINUUM


def brute_force(cost: Callable[[BoolArray], float], players: int) -> FloatArray:
    """The mean marginal saving over every order."""
    shares = np.zeros(players)
    orders = list(itertools.permutations(range(players)))
    for order in orders:
        removed = np.zeros(players, dtype=np.bool_)
        for player in order:
            before = cost(removed)
            removed[player] = True
            shares[player] += before - cost(removed)
    return shares / len(orders)


def slowest(durations: FloatArray, healthy: FloatArray) -> Callable[[BoolArray], FloatArray]:
    """A barrier per block: its cost is the slowest rank, [C, B]."""

    def game(removed: BoolArray) -> FloatArray:
        left: FloatArray = np.where(removed, healthy, durations).max(axis=2)
        return left

    return game


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=60)
def test_exact_shares_match_brute_force(players: int, blocks: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    healthy = rng.random((blocks, players))
    durations = healthy + rng.random((blocks, players))
    game = slowest(durations, healthy)
    shares = compute_shapley(game, players, blocks, rng)
    expected = brute_force(lambda removed: float(game(removed[None, None, :]).sum()), players)
    assert shares == pytest.approx(expected)
    assert shares.sum() == pytest.approx(durations.max(axis=1).sum() - healthy.max(axis=1).sum())


def test_sampled_shares_add_up_and_come_near() -> None:
    rng = np.random.default_rng(5)
    durations = 1.0 + rng.random((300, 8))
    game = slowest(durations, np.full((300, 8), 0.5))
    exact = compute_shapley(game, 8, 300, rng)
    sampled = module._sample_shares(game, 8, 300, np.random.default_rng(1), 13)
    assert sampled.sum() == pytest.approx(exact.sum())
    assert sampled == pytest.approx(exact, rel=0.05)


def planned(run: RunData) -> LockstepReplay:
    return build_lockstep_analysis(run, [LocalWorkDetector(COMPUTE)]).replay


@pytest.fixture(scope="module")
def what_if() -> LockstepReplay:
    injections = (
        Injection("compute", 3.0, 60, 110, rank=4),
        Injection("compute", 6.0, 90, 140, rank=1),
    )
    return planned(generate_run(TraceSpec(tiers=CONTINUUM, steps=200, injections=injections)))


def test_shares_of_a_run_match_brute_force_over_full_replays() -> None:
    tiers = (CONTINUUM[0], CONTINUUM[1])
    injections = (
        Injection("compute", 3.0, 60, 110, rank=2),
        Injection("compute", 3.0, 80, 130, rank=0),
    )
    noise = replace(Noise(), spike=0.0)  # a spike would be one more cause
    spec = TraceSpec(tiers=tiers, steps=200, noise=noise, injections=injections)
    small = planned(generate_run(spec))
    count = len(small.removals.affected)
    assert count == 4
    assert small.costs(0) == pytest.approx(brute_force(small.makespan, count), abs=1e-6)


def test_removing_more_causes_never_slows(what_if: LockstepReplay) -> None:
    count = len(what_if.removals.affected)
    rng = np.random.default_rng(3)
    for _ in range(60):
        few = rng.random(count) < 0.5
        more = few | (rng.random(count) < 0.5)
        assert what_if.makespan(more) <= what_if.makespan(few) + 1e-9


def test_shares_are_not_negative_and_add_up_to_the_total(what_if: LockstepReplay) -> None:
    count = len(what_if.removals.affected)
    total = what_if.makespan(np.zeros(count, np.bool_)) - what_if.makespan(np.ones(count, np.bool_))
    assert what_if.costs(0).sum() == pytest.approx(total)
    assert what_if.costs(0).min() >= -1e-9


def test_many_equal_hosts_carry_about_equal_shares() -> None:
    tiers = (CONTINUUM[0], type(CONTINUUM[2])("edge", 16, 4.0))
    analysis = analyze_lockstep(generate_run(TraceSpec(tiers=tiers, steps=300)))
    edge = [f.cost_s for f in analysis.findings if f.kind == "deterministic"]
    assert len(edge) == 16
    assert sum(f.cost_s for f in analysis.findings) == pytest.approx(analysis.lost_s, rel=1e-4)
    assert max(edge) < 2.5 * min(edge)


def test_orders_are_dealt_out_over_all_blocks_of_a_run() -> None:
    """A block that is asked about alone gets no more orders than one of many: that is what bounds
    the time for many slow ranks."""
    asked = []

    def game(removed: BoolArray) -> FloatArray:
        asked.append(len(removed))
        return slowest(np.full((1, 12), 2.0), np.ones((1, 12)))(removed)

    shares = compute_shapley(game, 12, 1, np.random.default_rng(0), total_blocks=512)
    assert sum(asked) == 16 * 13
    assert shares.sum() == pytest.approx(1.0)
    compute_shapley(game, 12, 1, np.random.default_rng(0))
    assert sum(asked) == 16 * 13 + 8192 * 13
