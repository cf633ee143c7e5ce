"""Stall accounting: exposed transfers within tiers and across them, waiting and idling told apart,
and nothing lost."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.run_generator import Tier, TraceSpec, generate_run
from laggard.analysis.findings.describe_asynchronous import describe_asynchronous
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.build_timeline import build_timeline
from laggard.analysis.tables.timelines.time_split import (
    TierPlacement,
    get_tier_placement,
    split_time,
    sum_compute_s,
)
from laggard.core.run_schema import StrategyRecord
from laggard.core.span_schema import Phase
from tests.analysis.asynchronous_runs import run_of, strategy

TWO = (Tier("cloud", 2), Tier("edge", 2))


def of_tiers(run: RunData, tiers: tuple[str, ...]) -> RunData:
    hosts = tuple(
        dataclasses.replace(host, tier=tier) for host, tier in zip(run.hosts, tiers, strict=True)
    )
    return dataclasses.replace(run, hosts=hosts)


@pytest.mark.parametrize(
    ("tiers", "server", "rank", "peer", "across"),
    [
        (("cloud", "edge"), None, 0, 1, True),
        (("edge", "edge"), None, 0, 1, False),
        (("cloud", "edge"), "cloud", 0, 2, False),
        (("cloud", "edge"), "cloud", 1, 2, True),
        (("edge", "edge"), "cloud", 0, 2, True),
        (("edge", "edge"), None, 0, -1, False),
        (("cloud", "edge"), None, 0, -1, True),
    ],
)
def test_what_crosses_tiers(
    tiers: tuple[str, ...], server: str | None, rank: int, peer: int, across: bool
) -> None:
    assert TierPlacement(tiers, server).crosses_tiers(
        np.array([rank]), np.array([peer])
    ).tolist() == [across]


def test_a_collective_crosses_tiers_if_its_members_do() -> None:
    member = np.array(
        [[True, True, False, False], [True, True, True, True], [False, False, True, True]]
    )
    assert TierPlacement(("cloud", "cloud", "edge", "edge")).has_several_tiers(member).tolist() == [
        False,
        True,
        False,
    ]
    assert TierPlacement(("edge",) * 4).has_several_tiers(member).tolist() == [False, False, False]
    assert TierPlacement(("edge",) * 4).has_several_tiers(member[:0]).tolist() == []


def test_what_ranks_computed_is_what_the_split_says() -> None:
    run = generate_run(TraceSpec(tiers=TWO, steps=40, seed=1))
    split = split_time(build_timeline(run), get_tier_placement(run))
    assert sum_compute_s(run) == pytest.approx(split.compute_s + split.prep_s)


def test_an_all_reduce_of_one_tier_is_the_interconnects_and_of_two_the_networks() -> None:
    run = generate_run(TraceSpec(tiers=TWO, steps=40, seed=1))
    timeline = build_timeline(run)
    far, near = (
        split_time(timeline, get_tier_placement(run)),
        split_time(timeline, TierPlacement(("edge",) * 4)),
    )
    assert far.interconnect_s == pytest.approx(np.zeros(4))
    assert near.network_s == pytest.approx(np.zeros(4))
    assert far.network_s == pytest.approx(near.interconnect_s)
    assert (far.network_s > 0).all()


@given(st.integers(0, 2**32 - 1), st.integers(2, 60))
@settings(deadline=None, max_examples=25)
def test_every_ranks_parts_add_up(seed: int, steps: int) -> None:
    run = generate_run(TraceSpec(tiers=TWO, steps=steps, seed=seed))
    timeline = build_timeline(run)
    split = split_time(timeline, get_tier_placement(run))
    assert split.total_s == pytest.approx(np.full(4, timeline.makespan + timeline.outside.sum()))
    assert sum(split.parts.values()) == pytest.approx(split.total_s)


def test_messages_between_ranks_of_their_own_pace() -> None:
    """Rank 0 sends 1 s to its own tier and 2 s across, waits 3 s, and is idle for the last 4 s of
    16."""
    spans = [
        (0, 0, Phase.FORWARD.code, 0.0, 6.0, -1, 0),
        (0, 0, Phase.COMM.code, 6.0, 3.0, 1, 0),
        (0, 0, Phase.COMM.code, 9.0, 1.0, 1, 99),
        (0, 0, Phase.COMM.code, 10.0, 2.0, 2, 99),
        (0, 1, Phase.FORWARD.code, 0.0, 16.0, -1, 0),
        (0, 2, Phase.FORWARD.code, 0.0, 16.0, -1, 0),
    ]
    run = run_of(
        strategy("gossip"), spans, [np.array([12.0]), np.array([16.0]), np.array([16.0])], 16.0
    )
    split = describe_asynchronous(of_tiers(run, ("edge", "edge", "cloud"))).time_split
    assert {
        name: round(float(seconds[0]), 9) for name, seconds in split.parts.items() if seconds[0]
    } == {
        "compute": 6.0,
        "interconnect": 1.0,
        "network": 2.0,
        "wait": 3.0,
        "idle": 4.0,
    }


def test_where_the_server_is_decides_what_pushes_are() -> None:
    spans = [(0, rank, Phase.COMM.code, 0.0, 1.0, 2, 99) for rank in range(2)]
    record = StrategyRecord(
        name="asynchronous",
        sync_mode="asynchronous",
        description="asynchronous",
        server_tier="cloud",
    )
    run = of_tiers(run_of(record, spans, [np.array([1.0])] * 2, 1.0), ("cloud", "edge"))
    split = describe_asynchronous(run).time_split
    assert split.interconnect_s.tolist() == [1.0, 0.0]
    assert split.network_s.tolist() == [0.0, 1.0]
