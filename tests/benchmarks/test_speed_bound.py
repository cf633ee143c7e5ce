"""The fastest that any strategy could be, and DDP's own rate: against closed forms."""

from __future__ import annotations

import math
import random
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategy_comparison.speed_bound import (
    RingLink,
    TimeShare,
    allreduce_samples_per_s,
    best_samples_per_s,
    compute_bound,
    compute_mean,
    host_levels,
    overlay_events,
    ring_allreduce_s,
    ring_levels,
    slowest_step,
)

from laggard.core.errors import InputError
from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import REPOSITORY, template, write

FRAMED = 1514 / 1448
STEP_CPU_S = 0.02
ALWAYS = (TimeShare(0.0, 1.0),)

parts = st.floats(0.01, 0.99)
share = st.floats(0.01, 1.0)
two_levels = st.builds(lambda a, b, p: (TimeShare(a, 1 - p), TimeShare(b, p)), share, share, parts)


def test_equal_hosts_have_nothing_to_gain() -> None:
    shares = ((TimeShare(0.1, 1.0),),) * 8
    assert best_samples_per_s(shares, STEP_CPU_S, 60) == pytest.approx(8 * 60 * 0.1 / STEP_CPU_S)
    assert allreduce_samples_per_s(shares, ALWAYS, STEP_CPU_S, 480) == pytest.approx(
        8 * 60 * 0.1 / STEP_CPU_S
    )


def test_unequal_hosts_could_be_as_fast_as_their_sum() -> None:
    """Shares of 8:4:1 on 2, 2 and 4 hosts: (2*8 + 2*4 + 4*1) / (8*1) = 3.5 times as fast as the
    slowest ones allow."""
    shares = tuple(
        (TimeShare(value, 1.0),) for value in (0.2, 0.2, 0.1, 0.1, 0.025, 0.025, 0.025, 0.025)
    )
    ratio = best_samples_per_s(shares, STEP_CPU_S, 60) / allreduce_samples_per_s(
        shares, ALWAYS, STEP_CPU_S, 480
    )
    assert ratio == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("probability", "slowdown", "hosts"), [(0.25, 5.0, 8), (0.1, 2.0, 3), (0.5, 10.0, 1)]
)
def test_hosts_that_slow_down_now_and_then(probability: float, slowdown: float, hosts: int) -> None:
    """All are fast for q = (1 - p)^n of the time: R_ddp = R (q + (1 - q) / k); capacity is R (1 - p
    + p / k)."""
    levels = overlay_events(0.1, [TimeShare(0.1 / slowdown, probability)])
    fast, full = (1 - probability) ** hosts, hosts * 60 * 0.1 / STEP_CPU_S
    shares = (levels,) * hosts
    expected = full * (fast + (1 - fast) / slowdown)
    assert allreduce_samples_per_s(shares, ALWAYS, STEP_CPU_S, hosts * 60) == pytest.approx(
        expected
    )
    assert best_samples_per_s(shares, STEP_CPU_S, 60) == pytest.approx(
        full * (1 - probability + probability / slowdown)
    )


@given(st.lists(two_levels, min_size=1, max_size=6))
def test_the_slowest_of_all_is_that_of_every_combination(
    shares: list[tuple[TimeShare, TimeShare]],
) -> None:
    found = slowest_step(shares, STEP_CPU_S)
    expected: dict[float, float] = {}
    for state in product(*shares):
        slowest = max(STEP_CPU_S / level.value for level in state)
        expected[slowest] = expected.get(slowest, 0.0) + math.prod(level.part for level in state)
    assert sum(level.part for level in found) == pytest.approx(1.0)
    for moment in expected:
        until = sum(part for value, part in expected.items() if value <= moment)
        assert sum(level.part for level in found if level.value <= moment) == pytest.approx(until)


@given(st.lists(two_levels, min_size=1, max_size=6), st.floats(0, 10))
def test_ddp_is_never_faster_than_the_bound(
    shares: list[tuple[TimeShare, TimeShare]], ring_s: float
) -> None:
    ddp = allreduce_samples_per_s(shares, (TimeShare(ring_s, 1.0),), STEP_CPU_S, 60 * len(shares))
    assert ddp <= best_samples_per_s(shares, STEP_CPU_S, 60) * (1 + 1e-9)


def test_events_at_the_same_time() -> None:
    levels = overlay_events(0.5, [TimeShare(0.1, 0.5), TimeShare(0.2, 0.5)])
    assert {level.value: level.part for level in levels} == pytest.approx(
        {0.1: 0.5, 0.2: 0.25, 0.5: 0.25}
    )
    assert compute_mean(levels) == pytest.approx(0.1 * 0.5 + 0.2 * 0.25 + 0.5 * 0.25)


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_ring_of_equal_links(workers: int) -> None:
    """2 (W - 1) (L + S / (W B)), of framed bytes."""
    ring_s = ring_allreduce_s((RingLink(5.0, 100.0),) * workers, 5_000_000)
    assert ring_s == pytest.approx(2 * (workers - 1) * (0.005 + 8 * 5e6 * FRAMED / workers / 100e6))


def test_one_slow_link_of_a_ring_is_what_it_waits_for() -> None:
    """Every one of the 2 (W - 1) chunks passes it, and the last then has no more than the rest of
    the ring before it."""
    slow, workers, size = 10.0, 8, 5_000_000
    hops = (RingLink(0.0, slow), *(RingLink(0.0, 1e6),) * (workers - 1))
    assert ring_allreduce_s(hops, size) == pytest.approx(
        2 * (workers - 1) * 8 * size * FRAMED / workers / 10e6, rel=1e-3
    )


def test_a_ring_of_one_sends_nothing() -> None:
    assert ring_allreduce_s((RingLink(5.0, 1.0),), 10_000_000) == 0.0
    assert ring_allreduce_s((), 10_000_000) == 0.0


def test_a_ring_of_delays_alone() -> None:
    """W = 3, delays 1, 2 and 4 ms: four hops in a row, the longest of which are 4 + 1 + 2 + 4."""
    assert ring_allreduce_s((RingLink(1.0), RingLink(2.0), RingLink(4.0)), 1) == pytest.approx(
        0.011
    )


@given(st.randoms(use_true_random=False))
def test_a_better_link_never_slows_a_ring(chance: random.Random) -> None:
    hops = [RingLink(chance.uniform(0, 20), chance.uniform(1, 100)) for _ in range(5)]
    better = list(hops)
    index = chance.randrange(5)
    better[index] = RingLink(hops[index].delay_ms / 2, 2 * (hops[index].rate_mbps or 1.0))
    assert ring_allreduce_s(better, 1e6) <= ring_allreduce_s(hops, 1e6)


def test_what_a_scenario_says() -> None:
    """Edge devices' radios: four entries, each on for a fifth of the time; only with none of them
    is the ring as fast as it can be."""
    scenario = load_scenario(REPOSITORY / "experiments/dynamic_network")
    rings = ring_levels(scenario, 5_000_000)
    fastest = min(level.value for level in rings)
    assert len(rings) == 2**4
    assert sum(level.part for level in rings) == pytest.approx(1.0)
    assert sum(level.part for level in rings if level.value == fastest) == pytest.approx(0.8**4)
    assert host_levels(scenario) == ((TimeShare(0.09, 1.0),),) * 8


def test_slow_hosts_of_a_scenario() -> None:
    scenario = load_scenario(REPOSITORY / "experiments/dynamic_compute")
    (levels,) = set(host_levels(scenario))
    assert {level.value: level.part for level in levels} == pytest.approx({0.07: 0.75, 0.015: 0.25})
    found = compute_bound(scenario, STEP_CPU_S, 0)
    assert found.best_samples_per_s == pytest.approx(
        8 * 60 * (0.75 * 0.07 + 0.25 * 0.015) / STEP_CPU_S
    )
    assert found.ratio > 1


@pytest.mark.parametrize(
    ("heterogeneity", "says"),
    [
        ('dynamic:\n  - {at: 1s, for: 2s, hosts: "edge.*", cpu: 1%}\n', "random"),
        (
            (
                'dynamic:\n  - {random: {every: 9s, for: 2s, seed: 1}, src: "edge.*", dst: "fog.*",'
                " profile: lte}\n"
            ),
            "profiles",
        ),
        ('deterministic:\n  - {hosts: "edge.*", uplink: 5mbit}\n', "share"),
    ],
)
def test_what_has_no_such_bound(tmp_path: Path, heterogeneity: str, says: str) -> None:
    folder = write(tmp_path / "mine", {**template(), "heterogeneity": heterogeneity})
    with pytest.raises(InputError, match=says):
        compute_bound(load_scenario(folder), STEP_CPU_S, 1)
