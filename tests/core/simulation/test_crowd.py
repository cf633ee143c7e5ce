"""Crowds of workers as arrays, against the simulation event by event and against closed forms."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.errors import InputError
from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.rules.synchronization import PeriodicSynchronization
from laggard.core.simulation.crowd.collective_rounds import (
    RingParts,
    simulate_all_reduce_rounds,
    simulate_tier_rounds,
)
from laggard.core.simulation.crowd.independent import simulate_alone
from laggard.core.simulation.crowd.served_workers import simulate_served_workers
from laggard.core.simulation.crowd.server_rounds import (
    CrowdServer,
    queue,
    simulate_server_rounds,
)
from laggard.core.simulation.crowd.workers import Crowd, CrowdClass, Slowness
from laggard.core.simulation.network import FRAMING_OVERHEAD, Bottleneck, SimulatedNetwork
from laggard.core.simulation.recorded_durations import RecordedDurations, create_constant_duration
from laggard.core.simulation.strategies.catalog import AlternativeStrategy
from laggard.core.simulation.training import SimulationInput, TrainingWork

STEPS = 5
MEGABYTE = 1e6
SERVER = "server"
HANDLING = MessageHandling(packing_s_per_mb=0.01, applying_s_per_mb=0.005)


@dataclasses.dataclass(frozen=True)
class Small:
    """A training of few workers that both ways of simulating can play."""

    step_s: tuple[float, ...]
    rate_mbps: float = 80.0
    rtt_ms: float = 10.0
    server_mbps: float = float("inf")

    @property
    def message_s(self) -> float:
        return MEGABYTE * FRAMING_OVERHEAD * 8e-6 / self.rate_mbps

    def crowd(self) -> Crowd:
        return Crowd(
            tuple(
                CrowdClass(
                    f"h{place}",
                    1,
                    seconds,
                    packing_s=0.01,
                    up_s=self.message_s,
                    down_s=self.message_s,
                    delay_s=self.rtt_ms / 2e3,
                )
                for place, seconds in enumerate(self.step_s)
            )
        )

    def events(self) -> SimulationInput:
        hosts = tuple(f"h{place}" for place in range(len(self.step_s)))
        names = (*hosts, SERVER)
        hops = {
            (src, dst): NetworkHop((src, dst), self.rate_mbps, self.rtt_ms)
            for src in names
            for dst in names
            if src != dst
        }
        shared = (
            ()
            if self.server_mbps == float("inf")
            else tuple(
                Bottleneck(name, frozenset(ends), self.server_mbps)
                for name, ends in (
                    ("in", [(host, SERVER) for host in hosts]),
                    ("out", [(SERVER, host) for host in hosts]),
                )
            )
        )
        return SimulationInput(
            work=TrainingWork(
                tuple(create_constant_duration(each) for each in self.step_s),
                np.ones(1),
                float(STEPS * len(hosts)),
                0.0,
            ),
            hosts=hosts,
            tiers=("edge",) * len(hosts),
            shares_of_core=(1.0,) * len(hosts),
            server=SERVER,
            server_share=1.0,
            network=SimulatedNetwork(hops, shared),
            message_bytes=MEGABYTE,
            handling=HANDLING,
        )


def _rng() -> np.random.Generator:
    return np.random.default_rng(1)


def _asynchronous(workers: int) -> BoundedStalenessRule:
    return BoundedStalenessRule(workers, None)


several = st.lists(st.floats(0.05, 3.0), min_size=1, max_size=8).map(tuple)


@settings(deadline=None)
@given(several)
def test_rounds_of_a_server_are_those_of_the_events(step_s: tuple[float, ...]) -> None:
    small = Small(step_s)
    found = simulate_server_rounds(small.crowd(), CrowdServer(0.01, 0.005), STEPS, _rng())
    exact = AlternativeStrategy("parameter_server").simulate(small.events()).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=1e-6)


@settings(deadline=None)
@given(st.integers(1, 8), st.floats(20, 400))
def test_equal_workers_share_the_links_of_the_server(workers: int, server_mbps: float) -> None:
    small = Small((0.5,) * workers, rate_mbps=1e6, rtt_ms=0.0, server_mbps=server_mbps)
    link_s = MEGABYTE * FRAMING_OVERHEAD * 8e-6 / server_mbps
    server = CrowdServer(0.01, 0.005, link_s, link_s)
    found = simulate_server_rounds(small.crowd(), server, STEPS, _rng())
    exact = AlternativeStrategy("parameter_server").simulate(small.events()).makespan_s
    # Only the simulation by events sees that a message passes its two links at once.
    assert found.makespan_s == pytest.approx(exact, rel=1e-4)


@settings(deadline=None)
@given(several)
def test_the_queue_of_an_asynchronous_server_is_that_of_the_events(
    step_s: tuple[float, ...],
) -> None:
    small = Small(step_s)
    found = simulate_served_workers(
        small.crowd(), CrowdServer(0.01, 0.005), STEPS, _rng(), _asynchronous
    )
    exact = AlternativeStrategy("asynchronous").simulate(small.events()).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=1e-6)


@settings(deadline=None)
@given(several)
def test_workers_that_wait_for_nobody(step_s: tuple[float, ...]) -> None:
    many = dataclasses.replace(Small(step_s).events(), work=_repeat(step_s, 200))
    exact = AlternativeStrategy("ad_psgd").simulate(many).makespan_s
    found = simulate_alone(Small(step_s).crowd(), 200, _rng())
    # Steps that have begun do not count yet: up to one of every worker.
    assert found.makespan_s == pytest.approx(exact, rel=0.02)


def _repeat(step_s: Sequence[float], steps: int) -> TrainingWork:
    ranks = tuple(create_constant_duration(each) for each in step_s)
    return TrainingWork(ranks, np.ones(1), float(steps * len(ranks)), 0.0)


@settings(deadline=None)
@given(st.integers(2, 12), st.floats(0.05, 2.0), st.sampled_from([1, 2, 5]))
def test_all_reduces_of_equal_workers_are_those_of_the_events(
    workers: int, step_s: float, every: int
) -> None:
    small = Small((step_s,) * workers)
    ring = RingParts.over(
        workers,
        NetworkHop(("a", "b"), small.rate_mbps, small.rtt_ms),
        MEGABYTE * FRAMING_OVERHEAD,
    )
    found = simulate_all_reduce_rounds(
        small.crowd(), ring, PeriodicSynchronization(every, STEPS - 1), STEPS, _rng()
    )
    exact = AlternativeStrategy("local_sgd", {"steps": every}).simulate(small.events()).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=1e-6)


def test_tiers_average_often_and_all_seldom() -> None:
    crowd = Crowd((CrowdClass("edge", 8, 1.0), CrowdClass("cloud", 2, 0.5)))
    rules = PeriodicSynchronization(1), PeriodicSynchronization(4, 7)
    found = simulate_tier_rounds(
        crowd, (RingParts(8, 0.01), RingParts(2, 0.02)), RingParts(2, 0.1), 0.05, rules, 8, _rng()
    )
    # Four steps and all-reduces of the slower tier, the leaders' all-reduce, three rounds.
    assert found.makespan_s == pytest.approx(2 * (4 * (1.0 + 14 * 0.01) + 0.2 + 3 * 0.05))


@given(
    st.lists(st.floats(0.1, 30.0), max_size=5, unique=True),
    st.lists(st.floats(0.3, 5.0), min_size=6, max_size=6),
    st.floats(0, 40),
    st.floats(0, 20),
)
def test_slow_times_stretch_as_recorded_durations_do(
    edges: list[float], factors: list[float], begin_s: float, seconds: float
) -> None:
    ordered, own = sorted(edges), factors[: len(edges) + 1]
    recorded = RecordedDurations(1.0, 0.0, np.ones(1), 0, np.array(ordered), np.array(own))
    found = float(Slowness(tuple(ordered), tuple(own)).stretch(np.array([begin_s]), seconds)[0])
    assert found == pytest.approx(recorded.compute_end_s(begin_s, seconds), rel=1e-9, abs=1e-9)


@given(st.lists(st.floats(0, 10), min_size=1, max_size=30), st.floats(0.01, 1))
def test_a_queue_serves_one_after_another(arrivals: list[float], service_s: float) -> None:
    free_s, left = 0.0, []
    for arrival_s in sorted(arrivals):
        free_s = max(free_s, arrival_s) + service_s
        left.append(free_s)
    assert queue(np.array(sorted(arrivals)), service_s).tolist() == pytest.approx(left)


def test_a_slow_time_of_a_class_delays_all() -> None:
    slow = CrowdClass("edge", 100, 1.0, slowness=Slowness((2.0, 4.0), (1.0, 2.0, 1.0)))
    ring = RingParts(200, 0.0)
    found = simulate_all_reduce_rounds(
        Crowd((slow, CrowdClass("cloud", 100, 1.0))), ring, PeriodicSynchronization(1), 10, _rng()
    )
    assert found.makespan_s == pytest.approx(11.0)
    assert found.computed_share == pytest.approx([1.0, 10 / 11])


def test_played_workers_stand_for_others_within_the_stated_error() -> None:
    server = CrowdServer(packing_s=1e-5)
    few, many = (
        simulate_served_workers(
            Crowd((CrowdClass("edge", count, 1.0, 0.3),)), server, 4, _rng(), _asynchronous
        )
        for count in (20_000, 60_000)
    )
    # A server that is busy all the time takes 20 us for each worker and step.
    assert few.relative_error == 0.0
    assert many.makespan_s == pytest.approx(60_000 * 4 * 2e-5 + 1.0, rel=0.2)
    assert many.relative_error < 0.05


@pytest.mark.parametrize(
    "changed",
    [
        {"workers": 0},
        {"workers": 10**9},
        {"step_s": 0.0},
        {"step_s": float("nan")},
        {"spread": -1.0},
        {"up_s": float("inf")},
    ],
)
def test_impossible_workers_are_refused(changed: dict[str, object]) -> None:
    with pytest.raises(InputError):
        dataclasses.replace(CrowdClass("edge", 1, 1.0), **changed)  # type: ignore[arg-type]


def test_a_training_without_steps_is_refused() -> None:
    crowd = Crowd((CrowdClass("edge", 1, 1.0),))
    rule, server = PeriodicSynchronization(1), CrowdServer(0.0)
    for simulate in (
        lambda: simulate_all_reduce_rounds(crowd, RingParts(1, 0.0), rule, 0, _rng()),
        lambda: simulate_server_rounds(crowd, server, 0, _rng()),
        lambda: simulate_served_workers(crowd, server, 0, _rng(), _asynchronous),
        lambda: simulate_alone(crowd, 0, _rng()),
    ):
        with pytest.raises(InputError, match="steps is 0"):
            simulate()
    with pytest.raises(InputError, match="0 workers"):
        Crowd(())
