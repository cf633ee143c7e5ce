"""One link otherwise: against the textbook's ring, a ring simulated message by message, and runs
that were made with other links."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.detection.links import Link
from laggard.analysis.evaluate.synthetic.link_samples import LinkWork, sample_links
from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.replay.link_model import estimate_hops, find_ring_ends
from laggard.analysis.replay.what_if.counterfactual import Counterfactual, build_replay
from laggard.analysis.tables.load_run import RunData, create_empty_links
from laggard.core.cost_model.links import LinkChange, NetworkHop
from laggard.core.cost_model.ring_all_reduce import compute_ring_finish_s
from laggard.core.errors import InputError, RunFolderError
from laggard.core.run_schema import FidelityCheck
from laggard.core.span_schema import Flag, Phase
from tests.analysis.asynchronous_runs import as_run, simulated, strategy
from tests.analysis.asynchronous_runs import run_of as spans_to_run

TIERS = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 2))
MEGABYTES = 6_000_000
STEPS = 80


def hop(rate_mbps: float, rtt_ms: float = 0.0) -> NetworkHop:
    return NetworkHop(("a", "b"), rate_mbps, rtt_ms)


def ring_s(hops: list[NetworkHop], payload_bytes: float) -> float:
    """Of hosts that come all at once."""
    return float(compute_ring_finish_s(np.zeros((1, len(hops))), hops, payload_bytes).max())


@given(st.integers(2, 20), st.floats(1.0, 1000.0), st.integers(1, 100))
def test_equal_links_without_delay_take_what_the_textbook_says(
    count: int, rate_mbps: float, megabytes: int
) -> None:
    expected = 2 * (count - 1) / count * megabytes * 8 / rate_mbps
    assert ring_s([hop(rate_mbps)] * count, megabytes * 1e6) == pytest.approx(expected)


@given(st.lists(st.tuples(st.floats(1.0, 1000.0), st.floats(0.0, 50.0)), min_size=2, max_size=10))
def test_a_ring_moves_at_the_pace_of_its_slowest_link(links: list[tuple[float, float]]) -> None:
    """But for less than a way round, at the beginning and the end."""
    hops = [hop(*link) for link in links]
    count = len(hops)
    part_s = [each.part_s(1e6) for each in hops]
    pace_s = 2 * (count - 1) * max(part_s)
    assert pace_s - 2 * max(part_s) <= ring_s(hops, count * 1e6) <= pace_s + sum(part_s)


def halves_s(arrival: list[float], hops: list[NetworkHop], half_bytes: float) -> list[float]:
    """The same as gloo's loop has it, from the end backwards: an oracle that is written as a
    recursion over events. Halves below `apart` are sums, and the others are given out."""
    count, apart = len(hops), 2 * (len(hops) - 1)

    @functools.cache
    def begun(host: int, half: int) -> float:
        """When a host asks for a half and offers its own."""
        if half < 2:
            return arrival[host]
        if half == apart:
            return max(begun(host, half + 1), over(host, half - 1), over(host, half - 2))
        if half == apart + 1:
            return max(over(host, half - 2), over(host, half - 3))
        return max(begun(host, half - 1), over(host, half - 2))

    @functools.cache
    def left(host: int, half: int) -> float:
        asked = begun((host + 1) % count, half) + hops[host].rtt_ms / 2e3
        free = left(host, half - 1) + wire_s(host) if half else -math.inf
        return max(begun(host, half), asked, free)

    def over(host: int, half: int) -> float:
        """When a host has received a half and has handed on its own."""
        before = (host - 1) % count
        received = left(before, half) + wire_s(before) + hops[before].rtt_ms / 2e3
        return max(received, left(host, half))

    def wire_s(host: int) -> float:
        return half_bytes * 8e-6 / hops[host].rate_mbps

    last = 2 * apart
    return [max(over(host, last - 1), over(host, last - 2)) for host in range(count)]


@given(
    st.lists(
        st.tuples(st.floats(1.0, 500.0), st.floats(0.0, 50.0), st.floats(0.0, 2.0)),
        min_size=2,
        max_size=8,
    )
)
def test_early_hosts_get_parts_on_before_the_others_come(
    hosts: list[tuple[float, float, float]],
) -> None:
    hops = [hop(rate, rtt) for rate, rtt, _ in hosts]
    arrival = [at for _, _, at in hosts]
    found = compute_ring_finish_s(np.array([arrival]), hops, len(hops) * 100_000.0)[0]
    assert found.tolist() == pytest.approx(halves_s(arrival, hops, 50_000.0))
    # Whoever comes later makes nobody quicker.
    later = compute_ring_finish_s(
        np.array([arrival]) + np.eye(len(hops))[:1], hops, len(hops) * 100_000.0
    )[0]
    assert (later >= found - 1e-9).all()


def test_small_parts_take_a_round_trip_and_large_ones_do_not() -> None:
    assert hop(100.0, 20.0).part_s(25_000) == pytest.approx(0.001 + 0.020)
    assert hop(100.0, 20.0).part_s(2_500_000) == pytest.approx(0.2)


@given(st.floats(1.0, 1000.0), st.floats(0.0, 100.0), st.floats(1.0, 20.0), st.floats(1e4, 1e7))
def test_a_slowed_link_takes_as_long_as_it_is_slowed_to(
    rate: float, rtt_ms: float, slower: float, part: float
) -> None:
    usual = hop(rate, rtt_ms)
    slow_s = usual.part_s(part) * slower
    assert usual.slowed_to(slow_s, part).part_s(part) == pytest.approx(slow_s, rel=1e-6)


def test_a_ring_is_found_by_what_hosts_send_most() -> None:
    carried = {("a", "c"): 9.0, ("c", "b"): 9.0, ("b", "a"): 9.0, ("a", "b"): 1.0, ("b", "x"): 99.0}
    assert find_ring_ends(carried, ["a", "b", "c"]) == (("a", "c"), ("c", "b"), ("b", "a"))
    assert find_ring_ends(carried | {("c", "a"): 10.0}, ["a", "b", "c"]) is None
    assert find_ring_ends({("a", "b"): 1.0}, ["a", "b"]) is None


def test_rates_are_those_that_were_measured_before_training_where_there_are_any() -> None:
    tiers = {"c1": "cloud", "c2": "cloud", "e1": "edge", "e2": "edge"}
    links = [
        Link(src, dst, 5.0, 1.0, 9.0, 12.0, 21.0, 20.0)
        for src, dst in (("c1", "e1"), ("c2", "e2"), ("e1", "e2"))
    ]
    check = FidelityCheck(
        kind="rate",
        src="c1",
        dst="e1",
        requested=50.0,
        measured=49.0,
        unit="Mbit/s",
        tolerance=5.0,
        ok=True,
    )
    hops = estimate_hops(links, [check], tiers)
    assert [hops[each].rate_mbps for each in (("c1", "e1"), ("c2", "e2"), ("e1", "e2"))] == [
        49.0,
        49.0,
        12.0,
    ]
    assert hops["c1", "e1"].rtt_ms == 20.0


def run_of(rates: dict[tuple[str, str], float], *injections: Injection) -> RunData:
    """Transfers of tens of milliseconds a part, so that rates tell and round trips do not."""
    run = generate_run(
        TraceSpec(
            tiers=TIERS, steps=STEPS, noise=QUIET, injections=injections, seed=5, rate_mbps=400.0, tier_rates_mbps=rates,
            gradient_bytes=MEGABYTES, warm_up_steps=0, evaluate_every=0,
        )
    )  # fmt: skip
    asked = {("cloud", "fog"): 400.0, ("fog", "edge"): 400.0, ("cloud", "edge"): 400.0} | rates
    checks = tuple(
        FidelityCheck(
            kind="rate", src=f"{a}.trainer.1.1", dst=f"{b}.trainer.1.1", requested=rate, measured=rate, unit="Mbit/s",
            tolerance=1.0, ok=True,
        )
        for a, b in asked for rate in (asked[a, b],)
    )  # fmt: skip
    inside = tuple(
        checks[0].model_copy(
            update={"src": f"{t}.trainer.1.1", "dst": f"{t}.trainer.1.2", "measured": 400.0}
        )
        for t in ("cloud", "fog", "edge")
    )
    return dataclasses.replace(run, fidelity=(*checks, *inside))


def makespan_s(run: RunData) -> float:
    assert run.record is not None
    assert run.record.outcome is not None
    return run.record.outcome.makespan_s


BEFORE = {("fog", "edge"): 50.0}


@pytest.mark.parametrize("rate", [25.0, 100.0, 200.0])
def test_another_rate_gives_the_run_that_had_it(rate: float) -> None:
    predicted = build_replay(run_of(BEFORE)).makespan_s(
        Counterfactual(links=(LinkChange("edge", "fog", rate_mbps=rate),))
    )
    assert predicted == pytest.approx(makespan_s(run_of({("fog", "edge"): rate})), rel=0.01)
    assert abs(predicted - makespan_s(run_of(BEFORE))) > 0.05 * makespan_s(run_of(BEFORE))


def test_a_link_that_holds_nobody_up_changes_nothing_until_it_does() -> None:
    replay = build_replay(run_of(BEFORE))
    faster = Counterfactual(links=(LinkChange("cloud", "fog", rate_mbps=1000.0),))
    assert replay.makespan_s(faster) == pytest.approx(replay.makespan_s(), rel=1e-9)
    slower = replay.makespan_s(Counterfactual(links=(LinkChange("cloud", "fog", rate_mbps=20.0),)))
    assert slower == pytest.approx(makespan_s(run_of(BEFORE | {("cloud", "fog"): 20.0})), rel=0.01)


def test_one_link_between_two_hosts() -> None:
    """Of a ring 0 to 5 the way from the second fog host to the first edge host; the way back is not
    in it."""
    replay = build_replay(run_of(BEFORE))
    ways = {
        "there": ("fog.trainer.1.2", "edge.trainer.1.1"),
        "back": ("edge.trainer.1.1", "fog.trainer.1.2"),
    }
    told = {
        name: replay.makespan_s(
            Counterfactual(links=(LinkChange(*way, rate_mbps=25.0, symmetric=False),))
        )
        for name, way in ways.items()
    }
    assert told["back"] == pytest.approx(replay.makespan_s(), rel=1e-9)
    assert told["there"] == pytest.approx(makespan_s(run_of({("fog", "edge"): 25.0})), rel=0.01)


def test_what_was_slow_for_a_while_stays_so() -> None:
    fade = Injection("network", 4.0, 30, 59, tiers=("fog", "edge"))
    replay = build_replay(run_of(BEFORE, fade))
    assert [(c.family, c.kind) for c in replay.causes if c.kind == "dynamic"] == [
        ("network", "dynamic")
    ]
    place = next(i for i, cause in enumerate(replay.causes) if cause.kind == "dynamic")
    faster = (LinkChange("edge", "fog", rate_mbps=100.0),)
    step_s = makespan_s(run_of(BEFORE)) / STEPS
    fast_s = makespan_s(run_of({("fog", "edge"): 100.0})) / STEPS
    slow_s = makespan_s(run_of({("fog", "edge"): 12.5})) / STEPS
    assert replay.makespan_s() == pytest.approx(50 * step_s + 30 * slow_s, rel=0.01)
    assert replay.makespan_s(Counterfactual(links=faster)) == pytest.approx(
        50 * fast_s + 30 * slow_s, rel=0.02
    )
    gone = Counterfactual(without=frozenset({place}), links=faster)
    assert replay.makespan_s(gone) == pytest.approx(STEPS * fast_s, rel=0.02)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"src": "edge", "dst": "fog"}, "neither a rate nor a delay"),
        ({"src": "edge", "dst": "fog", "rate_mbps": 0.0}, "must be greater than 0"),
        ({"src": "edge", "dst": "fog", "rate_mbps": float("nan")}, "must be greater than 0"),
        ({"src": "edge", "dst": "fog", "delay_ms": -1.0}, "must be finite and at least 0"),
    ],
)
def test_what_is_no_change_is_refused(change: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        LinkChange(**change)  # type: ignore[arg-type]


def test_what_a_run_cannot_tell_is_refused() -> None:
    run = run_of(BEFORE)
    asked = Counterfactual(links=(LinkChange("edge", "fog", rate_mbps=100.0),))
    with pytest.raises(RunFolderError, match="no connection was sampled"):
        build_replay(dataclasses.replace(run, links=create_empty_links())).makespan_s(asked)
    with pytest.raises(InputError, match="no host or tier"):
        build_replay(run).makespan_s(
            Counterfactual(links=(LinkChange("edge", "moon", rate_mbps=100.0),))
        )
    star = run.links.where(run.links.src != "edge.trainer.1.1")
    with pytest.raises(RunFolderError, match="one ring"):
        build_replay(dataclasses.replace(run, links=star)).makespan_s(asked)
    lasting = build_replay(run)
    place = next(i for i, cause in enumerate(lasting.causes) if cause.family == "network")
    with pytest.raises(InputError, match="request only one of the two"):
        lasting.makespan_s(Counterfactual(without=frozenset({place}), links=asked.links))
    own = as_run(
        strategy("asynchronous"),
        simulated(None, [np.full(20, 1.0)] * 2, [np.full(20, 0.1)] * 2),
        20.0,
    )
    with pytest.raises(RunFolderError, match="no message of a worker"):
        build_replay(own).makespan_s(asked)


SERVER = "cloud.server.1.1"
EDGES = ("edge.trainer.1.1", "edge.trainer.1.2")


def served_run(steps: int) -> RunData:
    """Two workers: a second of work, a push of 1.25 MB at 10 Mbit/s, an answer as large; nobody
    waits for anybody."""
    record = strategy("asynchronous").model_copy(update={"server_tier": "cloud"})
    spans: list[tuple[float, ...]] = []
    for rank in (0, 1):
        for step in range(steps):
            begin = 3.0 * step
            flag = int(Flag.WARM_UP) if step < 1 else 0
            spans += [
                (step, rank, Phase.FORWARD.code, begin, 1.0, -1, 0, flag),
                (step, rank, Phase.COMM.code, begin + 1.0, 1.0, 2, 1_250_000, flag),
                (step, rank, Phase.COMM.code, begin + 2.0, 0.0, 2, 0, flag),
                (step, rank, Phase.COMM.code, begin + 2.0, 1.0, 2, 1_250_000, flag),
            ]
    ends = [3.0 * np.arange(1, steps + 1)] * 2
    run = spans_to_run(record, spans, ends, 3.0 * steps)
    names = tuple(pair for edge in EDGES for pair in ((edge, SERVER), (SERVER, edge)))
    work = LinkWork(names, np.full((steps, 4), 10.0), ends[0], 1_250_000)
    check = FidelityCheck(
        kind="rate",
        src=EDGES[0],
        dst=SERVER,
        requested=10.0,
        measured=10.0,
        unit="Mbit/s",
        tolerance=1.0,
        ok=True,
    )
    return dataclasses.replace(run, links=sample_links(work, 1), fidelity=(check,))


@pytest.mark.parametrize(("rate", "step_s"), [(20.0, 2.0), (5.0, 5.0), (40.0, 1.5)])
def test_messages_to_and_from_a_server_take_as_long_as_their_bytes_do(
    rate: float, step_s: float
) -> None:
    replay = build_replay(served_run(60))
    assert replay.makespan_s() == pytest.approx(180.0, rel=1e-3)
    told = replay.makespan_s(Counterfactual(links=(LinkChange("edge", "cloud", rate_mbps=rate),)))
    assert told == pytest.approx(60 * step_s, rel=0.02)


def test_one_workers_link_is_its_own() -> None:
    """The one takes steps of 2 s then, the other still of 3: 120 steps in 144 s."""
    told = build_replay(served_run(60)).makespan_s(
        Counterfactual(links=(LinkChange(EDGES[0], SERVER, rate_mbps=20.0),))
    )
    assert told == pytest.approx(144.0, rel=0.02)
    told = build_replay(served_run(60)).makespan_s(
        Counterfactual(links=(LinkChange("edge", "cloud", delay_ms=101.0),))
    )
    # The push takes a round trip more, of which TCP had seen 2 ms, the answer half of one: 0.3 s.
    assert told == pytest.approx(60 * 3.3, rel=0.02)


def test_a_servers_links_that_nobody_sampled_are_refused() -> None:
    run = dataclasses.replace(served_run(20), links=create_empty_links())
    with pytest.raises(RunFolderError, match="no connection was sampled"):
        build_replay(run).makespan_s(
            Counterfactual(links=(LinkChange("edge", "cloud", rate_mbps=100.0),))
        )
