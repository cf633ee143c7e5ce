"""The queueing model against brute force and against queueing theory."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.link_plan import Constraint
from laggard.network_emulation.links.userspace.queueing import (
    BYTES,
    DROPPED,
    PACKETS,
    TALLY_FIELDS,
    LinkModel,
    Packet,
    Route,
    Stage,
    ns_per_byte,
)
from laggard.network_emulation.loss_bursts import variance_ratio

MS = 1e6
MTU = 1514


def packet(size: int, segments: int = 1) -> Packet:
    return Packet(b"", size, min(size, MTU), segments)


def route_through(*stages: Stage, index: int = 0) -> Route:
    own = Stage(None)
    return Route(index, 0, [own, *stages], own)


def model(routes: int = 1, seed: int = 1) -> tuple[LinkModel, list[int]]:
    tally = [0] * (routes * TALLY_FIELDS)
    return LinkModel(tally, random.Random(seed)), tally


def departures(
    links: LinkModel, route: Route, arrivals: Sequence[tuple[float, int]]
) -> list[float | None]:
    """When each packet (arrival time in ns, size) is delivered; None for those dropped."""
    out: dict[int, float] = {}
    known = {}
    for number, (time_ns, size) in enumerate(arrivals):
        out |= {known[id(p)]: due for due, _, p in links.advance(time_ns)}
        moving = packet(size)
        known[id(moving)] = number
        known[number] = moving  # type: ignore[assignment]  # kept alive, so that no other packet gets its id
        if links.enter(route, moving, time_ns):
            out[number] = time_ns
    out |= {known[id(p)]: due for due, _, p in links.advance(math.inf)}
    return [out.get(i) for i in range(len(arrivals))]


def brute_force(
    arrivals: Sequence[tuple[float, int]], rate_mbps: float, limit: float
) -> list[float | None]:
    """A server that works off an explicit queue of bytes, a packet at a time."""
    per_byte = 8000.0 / rate_mbps
    queue: deque[tuple[int, float]] = deque()  # number, bytes left
    clock = 0.0
    out: list[float | None] = [None] * len(arrivals)

    def work_until(end: float) -> None:
        nonlocal clock
        while queue and clock < end:
            number, left = queue[0]
            needed = left * per_byte
            if clock + needed > end:
                queue[0] = (number, left - (end - clock) / per_byte)
                break
            clock += needed
            out[number] = clock
            queue.popleft()
        clock = max(clock, end) if math.isfinite(end) else clock

    for number, (time_ns, size) in enumerate(arrivals):
        work_until(time_ns)
        backlog = sum(left for _, left in queue)
        if backlog > 1e-6 and backlog + size > limit + 1e-6:
            continue
        queue.append((number, float(size)))
    work_until(math.inf)
    return out


gaps = st.lists(
    st.tuples(st.integers(0, 2_000_000), st.integers(60, 1514)), min_size=1, max_size=60
)


@given(
    gaps,
    st.sampled_from([0.7, 3.0, 10.0, 95.0]),
    st.sampled_from([2000, 9001, 10**9]),
    st.sampled_from([0.0, 7.3]),
)
def test_a_stage_is_a_server_with_a_bounded_queue(
    steps: list[tuple[int, int]], rate: float, limit: int, delay: float
) -> None:
    arrivals, now = [], 0.0
    for gap, size in steps:
        now += gap
        arrivals.append((now, size))
    links, tally = model()
    route = route_through()
    links.constrain(route, Constraint(delay_ms=delay, rate_mbps=rate), limit, 0.0)
    expected = brute_force(arrivals, rate, limit)
    found = departures(links, route, arrivals)
    assert [x is None for x in found] == [x is None for x in expected]
    for mine, oracle in zip(found, expected, strict=True):
        if mine is not None and oracle is not None:
            assert mine == pytest.approx(oracle + delay * MS, abs=2.0)
    assert tally[DROPPED] == sum(x is None for x in expected)
    assert tally[PACKETS] + tally[DROPPED] == len(arrivals)


@dataclass(frozen=True)
class Segmented:
    """A super-packet of full segments and one last one."""

    full: int
    last: int

    @property
    def sizes(self) -> list[int]:
        return [MTU] * self.full + [self.last]

    @property
    def packet(self) -> Packet:
        return Packet(b"", sum(self.sizes), MTU, len(self.sizes))


supers = st.lists(
    st.tuples(
        st.integers(0, 8_000_000), st.builds(Segmented, st.integers(1, 40), st.integers(70, MTU))
    ),
    min_size=1,
    max_size=8,
)
rates = st.lists(st.sampled_from([2.0, 10.0, 33.0, 100.0, 1000.0]), min_size=1, max_size=3)


@given(supers, rates)
def test_super_packets_cross_stages_in_series_as_their_segments_would(
    steps: list[tuple[int, Segmented]], rates_mbps: list[float]
) -> None:
    stages = [Stage(rate) for rate in rates_mbps]
    links, _ = model()
    route = route_through(*stages)
    busy = [0.0] * len(rates_mbps)
    now, expected = 0.0, []
    found: list[float] = []
    for gap, batch in steps:
        now += gap
        found += [due for due, _, _ in links.advance(now)]
        assert not links.enter(route, batch.packet, now)
        for size in batch.sizes:
            arrival = now
            for i, rate in enumerate(rates_mbps):
                busy[i] = max(busy[i], arrival) + size * ns_per_byte(rate)
                arrival = busy[i]
        expected.append(arrival)
    found += [due for due, _, _ in links.advance(math.inf)]
    segment_ns = sum(MTU * ns_per_byte(rate) for rate in rates_mbps[1:])
    assert found == pytest.approx(expected, abs=segment_ns + 1.0)
    assert len(rates_mbps) > 1 or found == pytest.approx(expected, abs=1.0)


def test_slow_uplinks_fill_a_shared_bottleneck() -> None:
    shared = Stage(20.0)
    links, tally = model(routes=4)
    routes = [route_through(Stage(10.0), shared, index=i) for i in range(4)]
    for _ in range(50):
        for route in routes:
            links.enter(route, Packet(b"", 20 * MTU, MTU, 20), 0.0)
    due = [time_ns for time_ns, _, _ in links.advance(math.inf)]
    total = 4 * 50 * 20 * MTU
    ideal_ns = total * ns_per_byte(20.0)
    assert due[-1] == pytest.approx(ideal_ns + MTU * ns_per_byte(10.0), rel=0.001)
    assert tally[BYTES::TALLY_FIELDS] == [total // 4] * 4


@pytest.mark.parametrize(("sizes", "load"), [((1000,), 0.5), ((1000,), 0.8), ((100, 1500), 0.7)])
def test_waiting_follows_pollaczek_and_khinchine(sizes: tuple[int, ...], load: float) -> None:
    rate = 10.0
    chance = random.Random(42)
    service = [size * ns_per_byte(rate) for size in sizes]
    mean, second = sum(service) / len(service), sum(s * s for s in service) / len(service)
    arrivals, now = [], 0.0
    for _ in range(120_000):
        now += chance.expovariate(load / mean)
        arrivals.append((now, chance.choice(sizes)))
    links, _ = model()
    route = route_through()
    links.constrain(route, Constraint(rate_mbps=rate), math.inf, 0.0)
    left = departures(links, route, arrivals)
    waits = [
        due - t - size * ns_per_byte(rate)
        for (t, size), due in zip(arrivals, left, strict=True)
        if due
    ]
    theory = (load / mean) * second / (2 * (1 - load))
    assert sum(waits) / len(waits) == pytest.approx(theory, rel=0.06)


def test_losses_are_independent_and_cost_no_time_on_the_link() -> None:
    links, tally = model()
    route = route_through()
    links.constrain(route, Constraint(rate_mbps=100.0, loss_percent=10.0), math.inf, 0.0)
    left = departures(links, route, [(i * MS, 1000) for i in range(40_000)])
    lost = [due is None for due in left]
    assert sum(lost) / len(lost) == pytest.approx(0.1, abs=0.006)
    after_a_loss = [b for a, b in itertools.pairwise(lost) if a]
    assert sum(after_a_loss) / len(after_a_loss) == pytest.approx(0.1, abs=0.02)
    assert tally[DROPPED] == sum(lost)


@pytest.mark.parametrize(("loss_percent", "burst"), [(1.0, 5.0), (10.0, 2.0), (20.0, 40.0)])
def test_losses_in_bursts_have_geometric_lengths(loss_percent: float, burst: float) -> None:
    count, loss = 300_000, loss_percent / 100
    links, tally = model(seed=7)
    route = route_through()
    links.constrain(
        route, Constraint(loss_percent=loss_percent, burst_packets=burst), math.inf, 0.0
    )
    lost = [not links.enter(route, packet(1000), float(i)) for i in range(count)]
    four_errors = 4 * math.sqrt(loss * (1 - loss) * variance_ratio(loss, burst, count) / count)
    assert sum(lost) / count == pytest.approx(loss, abs=four_errors)
    runs = [len(list(run)) for losing, run in itertools.groupby(lost) if losing]
    stays = 1 - 1 / burst
    for length in (1, 2, int(burst) + 1, int(2 * burst)):
        expected = stays ** (length - 1)  # of all runs are so long or longer
        found = sum(run >= length for run in runs) / len(runs)
        assert found == pytest.approx(
            expected, abs=4 * math.sqrt(expected * (1 - expected) / len(runs)) + 1e-9
        )
    gaps = [len(list(run)) for losing, run in itertools.groupby(lost) if not losing]
    assert statistics.fmean(gaps) == pytest.approx(
        burst * (1 - loss) / loss, rel=4 / math.sqrt(len(gaps))
    )
    assert tally[DROPPED] == sum(lost)


def test_a_link_that_is_told_the_same_loss_stays_in_its_burst() -> None:
    links, _ = model()
    route = route_through()
    bursty = Constraint(loss_percent=50.0, burst_packets=1000.0)
    links.constrain(route, bursty, math.inf, 0.0)
    while links.enter(route, packet(100), 0.0):
        pass
    links.constrain(route, replace(bursty, rate_mbps=5.0), math.inf, 0.0)
    assert route.losing
    links.constrain(route, replace(bursty, loss_percent=40.0), math.inf, 0.0)
    assert not route.losing


def test_jitter_is_uniform_and_never_reorders() -> None:
    links, _ = model()
    route = route_through()
    links.constrain(route, Constraint(delay_ms=10.0, jitter_ms=4.0), math.inf, 0.0)
    left = departures(links, route, [(i * 20 * MS, 1000) for i in range(20_000)])
    delays = [due / MS - 20 * i for i, due in enumerate(left) if due is not None]
    assert 6.0 <= min(delays) < 6.01
    assert 13.99 < max(delays) <= 14.0
    assert sum(delays) / len(delays) == pytest.approx(10.0, abs=0.06)
    assert sum(d < 8.0 for d in delays) / len(delays) == pytest.approx(0.25, abs=0.015)
    dense = departures(links, route, [(1e15 + i * 0.1 * MS, 1000) for i in range(2000)])
    assert dense == sorted(x for x in dense if x is not None)


@pytest.mark.parametrize(
    ("distribution", "quantile"),
    [
        ("normal", NormalDist().inv_cdf),
        ("pareto", lambda u: 4 / 3 * ((1 - u) ** (-1 / 3) - 1.5)),  # about its mean 3/2; shape 3
    ],
)
def test_jitter_has_its_distributions_quantiles_and_never_reorders(
    distribution: Distribution, quantile: Callable[[float], float]
) -> None:
    links, _ = model()
    route = route_through()
    links.constrain(
        route, Constraint(delay_ms=50.0, jitter_ms=4.0, distribution=distribution), math.inf, 0.0
    )
    left = departures(links, route, [(i * 100 * MS, 1000) for i in range(40_000)])
    found = sorted((due / MS - 100 * i - 50) / 4 for i, due in enumerate(left) if due is not None)
    for u in (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99):
        slope = (quantile(u + 1e-4) - quantile(u - 1e-4)) / 2e-4
        four_errors = 4 * slope * math.sqrt(u * (1 - u) / len(found))
        assert found[int(u * len(found))] == pytest.approx(quantile(u), abs=four_errors + 1e-3)
    assert found[-1] <= 4.0
    dense = departures(links, route, [(1e15 + i * 0.1 * MS, 1000) for i in range(2000)])
    assert dense == sorted(x for x in dense if x is not None)


def test_no_delay_is_below_nothing() -> None:
    links, _ = model()
    route = route_through()
    links.constrain(
        route, Constraint(delay_ms=1.0, jitter_ms=1.0, distribution="normal"), math.inf, 0.0
    )
    left = departures(links, route, [(i * 10 * MS, 1000) for i in range(20_000)])
    delays = [due / MS - 10 * i for i, due in enumerate(left) if due is not None]
    assert min(delays) == 0.0
    below = NormalDist().cdf(-1.0)
    assert sum(delay < 1e-6 for delay in delays) / len(delays) == pytest.approx(below, abs=0.011)


def test_a_new_rate_serves_what_is_already_queued() -> None:
    links, tally = model()
    route = route_through()
    links.constrain(
        route, Constraint(delay_ms=5.0, rate_mbps=8.0), math.inf, 0.0
    )  # 1 byte per microsecond
    for _ in range(10):
        links.enter(route, packet(1000), 0.0)
    assert [due for due, _, _ in links.advance(7.5 * MS)] == pytest.approx([6 * MS, 7 * MS])
    # 7.5 ms have passed: 2500 bytes are left to serve. A tenth of the rate makes 25 ms of them.
    links.constrain(route, Constraint(delay_ms=5.0, rate_mbps=0.8), math.inf, 7.5 * MS)
    rest = [due / MS for due, _, _ in links.advance(math.inf)]
    assert rest == pytest.approx([8, 9, 10, 11, 12, 17.5, 27.5, 37.5])
    assert tally[DROPPED] == 0


def test_an_idle_free_link_passes_at_once_and_becomes_direct() -> None:
    links, tally = model()
    route = route_through()
    assert links.enter(route, packet(1000), 5.0)
    assert route.direct
    assert tally[:2] == [1000, 1]
    links.constrain(route, Constraint(delay_ms=1.0), math.inf, 6.0)
    assert not route.direct
    assert not links.enter(route, packet(1000), 7.0)
    links.constrain(route, Constraint(), math.inf, 8.0)
    assert not route.direct, "a packet is still under way, and none may overtake it"
    assert not links.enter(route, packet(1000), 9.0)
    assert [due for due, _, _ in links.advance(math.inf)] == [7.0 + MS, 7.0 + MS]


changes = st.one_of(
    st.tuples(st.just("send"), st.integers(60, 60_000)),
    st.tuples(st.just("change"), st.builds(
        Constraint,
        delay_ms=st.sampled_from([0.0, 1.0, 30.0]),
        jitter_ms=st.sampled_from([0.0, 0.5]),
        rate_mbps=st.sampled_from([None, 1.0, 10.0, 500.0]),
    )),
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 3_000_000), st.integers(0, 1), changes), max_size=60))
def test_live_changes_lose_nothing_and_keep_the_order(
    script: list[tuple[int, int, tuple[str, int | Constraint]]],
) -> None:
    shared = Stage(40.0)
    links, tally = model(routes=2)
    routes = [route_through(shared, index=0), route_through(index=1)]
    sent: list[list[Packet]] = [[], []]
    got: list[list[tuple[float, Packet]]] = [[], []]
    now = 0.0
    for gap, which, (what, value) in script:
        now += gap
        for due, route, arrived in links.advance(now):
            got[route.index].append((due, arrived))
        if isinstance(value, Constraint):
            links.constrain(routes[which], value, math.inf, now)
            continue
        assert what == "send"
        moving = Packet(str(len(sent[which])).encode(), value, min(value, MTU), 1)
        sent[which].append(moving)
        for due, route, arrived in links.advance(now):
            got[route.index].append((due, arrived))
        if links.enter(routes[which], moving, now):
            got[which].append((now, moving))
    for due, route, arrived in links.advance(math.inf):
        got[route.index].append((due, arrived))
    for mine, theirs in zip(sent, got, strict=True):
        assert [p for _, p in theirs] == mine
        assert [due for due, _ in theirs] == sorted(due for due, _ in theirs)
    assert sum(tally[DROPPED::TALLY_FIELDS]) == 0
