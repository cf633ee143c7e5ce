"""Fidelity: what is measured when, and that a wrong link does not pass."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.link_tasks import (
    HOST_MBPS,
    ROUND_MBPS,
    RTT_PAIRS,
    Task,
    choose_representatives,
    choose_round_trips,
    echo_probe,
    estimate_duration_s,
    links_used,
    loss_probe,
    plan_rounds,
    rate_probe,
    sample_round_trips,
)
from laggard.network_emulation.fidelity.measure import LossCount
from laggard.network_emulation.fidelity.probes.echo import LARGE_BYTES, SMALL_BYTES
from laggard.network_emulation.fidelity.verify_links import (
    ORDINARY,
    loss_error_percent,
    measure_patiently,
    median_round_trip_ms,
    verify_links,
)
from laggard.network_emulation.link_plan import (
    AccessLink,
    Constraint,
    LinkPlan,
    Pair,
    SharedLink,
    dilate_links,
    tier_pairs,
)
from laggard.network_emulation.links.userspace import UserspaceBackend
from laggard.network_emulation.links.userspace.queueing import (
    DROPPED,
    LinkModel,
    Packet,
    Route,
    Stage,
)
from tests.network_emulation.emulated import Continuum, in_sandbox, make_hosts, needs_tun

PLAIN = Dilation()
BETWEEN = {
    ("cloud", "fog"): Constraint(10.0, rate_mbps=100.0),
    ("cloud", "edge"): Constraint(15.0, rate_mbps=20.0),
    ("edge", "cloud"): Constraint(15.0, rate_mbps=10.0),
    ("fog", "edge"): Constraint(5.0, rate_mbps=50.0),
}


def tiered(cloud: int, fog: int, edge: int) -> LinkPlan:
    hosts = make_hosts(cloud, fog, edge)
    pairs: dict[Pair, Constraint] = {}
    for a, b in itertools.permutations(hosts, 2):
        constraint = BETWEEN.get((a.layer, b.layer)) or BETWEEN.get((b.layer, a.layer))
        if constraint is not None:
            pairs[a.name, b.name] = constraint
    return LinkPlan(hosts, pairs)


@pytest.mark.parametrize("sizes", [(1, 1, 2), (2, 2, 4), (1, 1, 10), (8, 8, 16), (10, 20, 70)])
def test_every_group_has_one_representative_and_few_rounds_measure_them(
    sizes: tuple[int, int, int],
) -> None:
    plan = tiered(*sizes)
    tasks = choose_representatives(plan)
    groups = tier_pairs(plan)
    assert len(tasks) == len(groups) == 6
    assert all(any(task.pair in group.pairs for task in tasks) for group in groups)
    assert len({frozenset(task.pair) for task in tasks}) == 3, (
        "the way back is measured on the same two hosts"
    )
    assert len(plan_rounds(plan, tasks, PLAIN, ROUND_MBPS[0])) == 2
    assert all(len(chosen) == 1 for chosen in plan_rounds(plan, tasks, PLAIN, ROUND_MBPS[-1])), (
        "at last, one by one"
    )
    sampled = sample_round_trips(plan, tasks)
    assert len({frozenset(task.pair) for task in sampled}) == len(sampled) <= RTT_PAIRS
    assert {frozenset(task.pair) for task in tasks} <= {frozenset(task.pair) for task in sampled}


def test_representatives_spread_over_the_hosts() -> None:
    tasks = choose_representatives(tiered(2, 2, 4))
    assert len({host for task in tasks for host in task.pair}) == 6


names = [host.name for host in make_hosts(2, 2, 4)]
pair_lists = st.lists(
    st.tuples(st.sampled_from(names), st.sampled_from(names)).filter(
        lambda pair: pair[0] != pair[1]
    ),
    unique=True,
    max_size=20,
)


@given(
    pair_lists,
    st.sets(st.sampled_from(names)),
    st.sets(st.integers(0, 19)),
    st.sampled_from([1.0, 300.0, 2000.0]),
)
def test_rounds_never_put_two_flows_on_one_link(
    pairs: list[Pair], with_access: set[str], bottlenecked: set[int], rate: float
) -> None:
    shared = SharedLink("wan", frozenset(pairs[i] for i in bottlenecked if i < len(pairs)), rate)
    access = {name: AccessLink(name, rate, rate) for name in with_access}
    plan = LinkPlan(
        make_hosts(2, 2, 4), dict.fromkeys(pairs, Constraint(rate_mbps=rate)), access, (shared,)
    )
    tasks = [Task(pair, plan.expected(*pair), Constraint()) for pair in pairs]
    rounds = plan_rounds(plan, tasks, PLAIN, ROUND_MBPS[0])
    assert sorted(task.pair for chosen in rounds for task in chosen) == sorted(pairs)
    for chosen in rounds:
        used = [link for task in chosen for link in links_used(plan, task.pair)]
        assert len(used) == len(set(used))
        if len(chosen) > 1:
            for name in names:
                assert sum(rate for task in chosen if name in task.pair) <= HOST_MBPS


def test_probes_leave_a_slow_link_idle_and_dilate() -> None:
    slow = Task(("a", "b"), Constraint(5.0, rate_mbps=0.5), Constraint(5.0, rate_mbps=0.5))
    assert echo_probe(slow, PLAIN).spacing_ms > 2 * 2 * 1058 * 8 / 500 - 0.01
    assert 8 <= echo_probe(slow, PLAIN).count < 48
    probe = rate_probe(replace(slow, there=Constraint(5.0, rate_mbps=40.0)), Dilation(4.0))
    assert (probe.rate_mbps, probe.delay_ms, probe.rtt_ms, probe.transport) == (
        10.0,
        20.0,
        40.0,
        "tcp",
    )
    distant = replace(slow, there=Constraint(5.0, rate_mbps=40.0))
    assert rate_probe(distant, Dilation(100.0)).transport == "tcp"
    assert rate_probe(distant, Dilation(101.0)).transport == "udp", "slow start takes too long"
    lossy = replace(slow, there=Constraint(5.0, rate_mbps=100.0, loss_percent=5.0))
    assert rate_probe(lossy, PLAIN).transport == "udp"
    crawling = rate_probe(replace(slow, there=Constraint(12.5, rate_mbps=0.00547)), PLAIN)
    assert crawling.transport == "udp"
    packet_s = crawling.packet_bytes * 8e-6 / 0.00547
    assert packet_s < 0.2, "a full-size packet takes 2.2 s"
    assert crawling.window_s >= 5 * packet_s
    assert crawling.burst_bytes > 0, "what a token bucket passes at once does not count"
    jittery = replace(slow, there=Constraint(15.0, jitter_ms=10.0, rate_mbps=40.0))
    assert rate_probe(jittery, PLAIN).window_s > 1.0, "long against what jitter does to its ends"
    assert loss_probe(lossy, PLAIN, 1).count == 1900
    assert loss_probe(lossy, PLAIN, 100).per_s == 160.0


@given(st.floats(1e-4, 1000.0), st.floats(1e-4, 1000.0), st.floats(0.0, 1e5))
def test_echoes_have_two_sizes_and_find_any_link_idle(
    there: float, back: float, delay: float
) -> None:
    task = Task(("a", "b"), Constraint(delay, rate_mbps=there), Constraint(delay, rate_mbps=back))
    probe = echo_probe(task, PLAIN)
    assert SMALL_BYTES < probe.large_bytes <= LARGE_BYTES
    assert probe.large_bytes % 2 == 0, "a checksum is one of words of two bytes"
    echo_ms = (probe.large_bytes + 42) * 8e-3 * (1 / there + 1 / back)
    assert probe.spacing_ms >= 2 * echo_ms * 0.999
    assert probe.patience_ms >= echo_ms + 2 * delay
    assert probe.count >= 4


def test_a_link_that_loses_everything_is_verified_by_its_losses_alone() -> None:
    hosts = make_hosts(1, 1, 1)
    cloud, fog, edge = (host.name for host in hosts)
    dead, alive = Constraint(5.0, rate_mbps=10.0, loss_percent=100.0), Constraint(5.0)
    pairs = {(cloud, fog): dead, (fog, cloud): alive, (cloud, edge): alive, (edge, cloud): alive}
    plan = LinkPlan(hosts, pairs)
    tasks = choose_representatives(plan)
    assert {task.pair for task in tasks if task.there == dead} == {(cloud, fog)}
    assert not any(task.has_rate for task in tasks)
    measured = choose_round_trips(plan, tasks)
    assert {frozenset(task.pair) for task in measured} == {frozenset((cloud, edge))}


@pytest.mark.parametrize(
    ("link", "least_s", "most_s"),
    [
        (Constraint(5.0, rate_mbps=100.0), 0.5, 4.0),
        (Constraint(10.0, rate_mbps=0.001), 60.0, 120.0),
        (Constraint(100_000.0, rate_mbps=1.0), 390.0, 420.0),
    ],
)
def test_the_time_of_verification_is_known_before(
    link: Constraint, least_s: float, most_s: float
) -> None:
    hosts = make_hosts(1, 0, 1)
    cloud, edge = (host.name for host in hosts)
    plan = LinkPlan(hosts, {(cloud, edge): link, (edge, cloud): link})
    assert least_s < estimate_duration_s(plan, PLAIN) < most_s
    doubled_s = estimate_duration_s(plan, Dilation(2.0))
    assert estimate_duration_s(plan, PLAIN) < doubled_s


@pytest.mark.parametrize(
    "there",
    [
        Constraint(5.0, jitter_ms=2.0),
        Constraint(50.0, 9.0, distribution="normal"),
        Constraint(60.0, 20.0, 9.0, distribution="pareto"),
    ],
)
def test_jitter_moves_the_median_of_the_echoes_no_further_than_chance_would(
    there: Constraint,
) -> None:
    """Simulated: series of echoes, whose medians the tolerance of an otherwise exact link takes all
    but once in 16 000."""
    task = Task(("a", "b"), there, replace(there, delay_ms=30.0, jitter_ms=there.jitter_ms / 3))
    asked_ms, by_chance_ms = median_round_trip_ms(task, PLAIN)
    each_size = echo_probe(task, PLAIN).count // 2
    chance = random.Random(3)

    def drawn_ms(link: Constraint) -> float:
        x, normal, pareto = (
            chance.uniform(-1, 1),
            chance.gauss(0, 1),
            4 / 3 * (chance.paretovariate(3) - 1.5),
        )
        offset = {"uniform": x, "normal": normal, "pareto": min(4.0, pareto)}[link.distribution]
        return max(0.0, link.delay_ms + link.jitter_ms * offset)

    medians = [
        statistics.median(drawn_ms(task.there) + drawn_ms(task.back) for _ in range(each_size))
        for _ in range(2000)
    ]
    assert max(abs(median - asked_ms) for median in medians) <= by_chance_ms
    assert max(abs(median - asked_ms) for median in medians) > by_chance_ms / 4, (
        "and is not far wider than that"
    )
    assert statistics.median(medians) == pytest.approx(asked_ms, abs=0.02 * there.jitter_ms)
    assert median_round_trip_ms(Task(("a", "b"), Constraint(5.0), Constraint(6.0)), PLAIN) == (
        11.0,
        0.0,
    )


@pytest.mark.parametrize(("loss_percent", "burst"), [(2.0, 1.0), (2.0, 5.0), (20.0, 10.0)])
def test_the_tolerance_of_a_loss_is_four_standard_errors_of_its_bursts(
    loss_percent: float, burst: float
) -> None:
    """Simulated: what the link model loses of the probe's packets, again and again."""
    link = Constraint(loss_percent=loss_percent, burst_packets=burst)
    packets = loss_probe(Task(("a", "b"), link, Constraint()), PLAIN, 1).count
    tally = [0, 0, 0]
    model, own = LinkModel(tally, random.Random(1)), Stage(None)
    route = Route(0, 0, [own], own)
    model.constrain(route, link, math.inf, 0.0)
    lost = []
    for _ in range(60):
        before = tally[DROPPED]
        for _ in range(packets):
            model.enter(route, Packet(b"", 64, 64, 1), 0.0)
        lost.append(100 * (tally[DROPPED] - before) / packets)
    sigma = loss_error_percent(link, LossCount(packets, 0)) / 4
    assert statistics.stdev(lost) == pytest.approx(sigma, rel=0.4)  # four standard errors of 60
    assert statistics.fmean(lost) == pytest.approx(loss_percent, abs=4 * sigma / math.sqrt(60))


def test_losses_in_bursts_are_counted_longer_and_no_faster() -> None:
    plain, bursty = (
        loss_probe(
            Task(("a", "b"), Constraint(loss_percent=1.0, burst_packets=burst), Constraint()),
            PLAIN,
            1,
        )
        for burst in (1.0, 5.0)
    )
    assert (plain.count, bursty.count) == (4000, 16_000)
    assert bursty.per_s == plain.per_s


def check(task: Task, measured: float) -> FidelityCheck:
    src, dst = task.pair
    return FidelityCheck(
        kind="rtt",
        src=src,
        dst=dst,
        requested=1.0,
        measured=measured,
        unit="ms",
        tolerance=0.5,
        ok=measured < 1.5,
    )


def test_only_what_fails_is_measured_again_and_stays_failed_when_it_does() -> None:
    steady, disturbed, wrong = (Task((name, "z"), Constraint(), Constraint()) for name in "abc")
    asked: list[list[str]] = []

    def measure(tasks: Sequence[Task], attempt: int) -> list[FidelityCheck]:
        assert attempt == len(asked)
        asked.append([task.pair[0] for task in tasks])
        slow = {"a": 1.0, "b": 9.0 if len(asked) < 2 else 1.0, "c": 9.0}
        return [check(task, slow[task.pair[0]]) for task in reversed(tasks)]

    checks = measure_patiently([steady, disturbed, wrong], measure)
    assert asked == [["a", "b", "c"], ["b", "c"], ["c"]]
    assert [(each.src, each.ok) for each in checks] == [("a", True), ("b", True), ("c", False)]
    assert checks[1].detail.endswith("measured 2 times")
    assert measure_patiently([], measure) == ()


def measure_wrong_links(continuum: Continuum) -> tuple[FidelityCheck, ...]:
    """Links of every kind, of which none is what was asked for, in a way that a busy machine makes
    only worse: later, slower, losing more, or dead, or faster than any machine."""
    cloud, fog, edge1, edge2 = (host.name for host in continuum.hosts)
    asked = {
        (cloud, fog): Constraint(10.0, rate_mbps=20.0),
        (fog, edge1): Constraint(5.0, 1.0, 10.0, 2.0, "normal", burst_packets=3.0),
        (cloud, edge1): Constraint(1.0, rate_mbps=10.0),
        (edge1, edge2): Constraint(0.0, rate_mbps=400_000.0),
    }
    given = {
        (cloud, fog): Constraint(40.0, rate_mbps=10.0),
        (fog, edge1): Constraint(35.0, 1.0, 5.0, 40.0, "normal", burst_packets=3.0),
        (cloud, edge1): Constraint(loss_percent=100.0),
        (edge1, edge2): Constraint(30.0),
    }
    plan = LinkPlan(continuum.hosts, asked)
    dilation = Dilation(2.0)
    backend = UserspaceBackend.start(
        dilate_links(LinkPlan(continuum.hosts, given), dilation), continuum.namespaces, dilation
    )
    checks = verify_links(plan, continuum.namespaces, dilation, ORDINARY)
    backend.close()
    return checks


@needs_tun
@pytest.mark.long
def test_links_that_are_not_what_was_asked_for_fail_in_virtual_units() -> None:
    checks = in_sandbox(measure_wrong_links)
    assert [check for check in checks if check.ok] == []
    assert [(check.kind, check.unit, check.requested) for check in checks] == [
        ("rtt", "ms", 10.0),
        ("rtt", "ms", 1.0),
        ("rtt", "ms", pytest.approx(5.0, abs=0.01)),
        ("rtt", "ms", 0.0),
        ("rate", "Mbit/s", 20.0),
        ("rate", "Mbit/s", 10.0),
        ("rate", "Mbit/s", 10.0),
        ("rate", "Mbit/s", 400_000.0),
        ("loss", "%", 2.0),
    ]
    assert all(check.detail.endswith("measured 3 times") for check in checks)
    assert "no echo" in checks[1].detail
    assert 0.0 < checks[7].measured < 300_000.0
