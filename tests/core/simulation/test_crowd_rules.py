"""Crowds by the rules of servers and neighbors, with absences and changing rates, against events."""

from __future__ import annotations

import dataclasses
import math
import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.core.revocation.lifetimes import Life, Lifetimes
from laggard.core.rules.backup_workers import BackupWorkersRule
from laggard.core.rules.bounded_staleness import BoundedStalenessRule
from laggard.core.simulation.crowd.absences import Attendance, DrawnAbsences, WrittenAbsences
from laggard.core.simulation.crowd.independent import simulate_alone
from laggard.core.simulation.crowd.neighbor_rounds import NeighborLinks, simulate_ring_neighbors
from laggard.core.simulation.crowd.served_workers import simulate_served_workers
from laggard.core.simulation.crowd.server_rounds import CrowdServer, simulate_server_rounds
from laggard.core.simulation.crowd.workers import Crowd, CrowdClass, Slowness
from laggard.core.simulation.network import SlowPeriod
from laggard.core.simulation.strategies.catalog import AlternativeStrategy
from laggard.core.simulation.strategies.server import ServerSimulation
from laggard.core.simulation.training import SimulationInput
from tests.core.simulation.test_crowd import STEPS, Small, _rng, several

SERVICE = CrowdServer(0.01, 0.005)
LIVES = Lifetimes((Life(3.0), Life(5.0), Life(5.0, censored=True), Life(9.0)))


@settings(deadline=None)
@given(several, st.integers(0, 3))
def test_bounded_staleness_is_that_of_the_events(step_s: tuple[float, ...], staleness: int) -> None:
    small = Small(step_s)
    rule_of = partial(BoundedStalenessRule, staleness=staleness)
    found = simulate_served_workers(small.crowd(), SERVICE, STEPS, _rng(), rule_of)
    strategy = AlternativeStrategy("bounded_staleness", {"staleness": staleness})
    exact = strategy.simulate(small.events()).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=1e-6)


@settings(deadline=None)
@given(several, st.integers(0, 3))
def test_backup_workers_are_those_of_the_events(step_s: tuple[float, ...], backups: int) -> None:
    small, backups = Small(step_s), min(backups, len(step_s) - 1)
    rule_of = partial(BackupWorkersRule, backups=backups)
    found = simulate_served_workers(small.crowd(), SERVICE, STEPS, _rng(), rule_of)
    strategy = AlternativeStrategy("backup_workers", {"backups": backups})
    exact = strategy.simulate(small.events()).makespan_s
    assert found.makespan_s == pytest.approx(exact, rel=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(0.05, 3.0), min_size=3, max_size=9).map(tuple), st.booleans())
def test_neighbors_are_those_of_the_events(step_s: tuple[float, ...], slow: bool) -> None:
    small = Small(step_s)
    exact = AlternativeStrategy("gossip").simulate(_slow_links(small) if slow else small.events())
    workers, slowness = len(step_s), SLOW if slow else Slowness()
    links = [NeighborLinks(slice(0, workers), small.message_s, small.rtt_ms / 2e3, slowness)]
    found = simulate_ring_neighbors(small.crowd(), links, links, STEPS, _rng())
    assert found.makespan_s == pytest.approx(exact.makespan_s, rel=1e-6)


SLOW = Slowness((0.4, 1.7), (1.0, 3.0, 1.0))


def _slow_links(small: Small) -> SimulationInput:
    """The training, whose links have a third of their rates for a time."""
    sim_input = small.events()
    network = sim_input.network
    slow = SlowPeriod(0.4, 1.7, frozenset(network.hops), small.rate_mbps / 3)
    return dataclasses.replace(
        sim_input, network=dataclasses.replace(network, slow_periods=(slow,))
    )


@settings(deadline=None)
@given(several, st.sampled_from(["parameter_server", "asynchronous"]))
def test_slow_links_delay_messages_as_in_the_events(step_s: tuple[float, ...], name: str) -> None:
    small = Small(step_s)
    exact = AlternativeStrategy(name).simulate(_slow_links(small)).makespan_s
    crowd = Crowd(
        tuple(
            dataclasses.replace(each, up_slowness=SLOW, down_slowness=SLOW)
            for each in small.crowd().classes
        )
    )
    found = (
        simulate_server_rounds(crowd, SERVICE, STEPS, _rng())
        if name == "parameter_server"
        else simulate_served_workers(
            crowd, SERVICE, STEPS, _rng(), partial(BoundedStalenessRule, staleness=None)
        )
    )
    assert found.makespan_s == pytest.approx(exact, rel=1e-6)


def _draw_case(rng: random.Random) -> tuple[Small, list[WrittenAbsences | None]]:
    """Draw workers, of whom the first never leaves, so that the training ends."""
    workers = rng.randint(2, 6)
    step_s = (1.0, *(rng.uniform(0.05, 3.0) for _ in range(workers - 1)))
    away = [_pair([rng.uniform(0.0, 12.0) for _ in range(rng.randint(0, 4))]) for _ in step_s[1:]]
    return Small(step_s), [None, *away]


def _with_absences(small: Small, away: list[WrittenAbsences | None]) -> Crowd:
    return Crowd(
        tuple(
            dataclasses.replace(each, absences=own)
            for each, own in zip(small.crowd().classes, away, strict=True)
        )
    )


@pytest.mark.parametrize("staleness", [0, 2, None])
def test_workers_leave_and_join_as_in_the_events(staleness: int | None) -> None:
    rule_of, errors = partial(BoundedStalenessRule, staleness=staleness), []
    for seed in range(100):
        small, away = _draw_case(random.Random(seed))
        events = ServerSimulation(small.events(), rule_of(len(away)))
        for rank, own in enumerate(away):
            for leaves_s, joins_s in () if own is None else own.times_s:
                events.loop.schedule(leaves_s, partial(events.leave, rank))
                if joins_s < math.inf:
                    events.loop.schedule(joins_s, partial(events.join, rank))
        crowd = _with_absences(small, away)
        found = simulate_served_workers(crowd, SERVICE, STEPS, _rng(), rule_of)
        errors.append(abs(found.makespan_s / events.simulate().makespan_s - 1))
    # The events lose a gradient if its worker leaves while it waits for the server. A crowd does
    # not, so a training may differ by the step of one worker.
    assert np.quantile(errors, 0.8) < 0.01
    assert max(errors) < 1.5 / STEPS


def test_rounds_wait_for_those_that_are_present() -> None:
    rule_of, errors = partial(BoundedStalenessRule, staleness=0), []
    for seed in range(100):
        small, away = _draw_case(random.Random(seed))
        crowd = _with_absences(small, away)
        rounds = simulate_server_rounds(crowd, SERVICE, STEPS, _rng())
        events = ServerSimulation(small.events(), rule_of(len(away)))
        events.sim_input = dataclasses.replace(
            events.sim_input,
            work=dataclasses.replace(events.sim_input.work, goal=float(rounds.steps)),
        )
        for rank, own in enumerate(away):
            for leaves_s, joins_s in () if own is None else own.times_s:
                events.loop.schedule(leaves_s, partial(events.leave, rank))
                if joins_s < math.inf:
                    events.loop.schedule(joins_s, partial(events.join, rank))
        errors.append(abs(rounds.makespan_s / events.simulate().makespan_s - 1))
    assert np.quantile(errors, 0.8) < 0.01
    assert max(errors) < 1.5 / STEPS


def _pair(times: list[float]) -> WrittenAbsences | None:
    flat = sorted(times)
    pairs = tuple(zip(flat[::2], [*flat[1::2], math.inf], strict=False))
    return WrittenAbsences(pairs) if pairs else None


def test_half_of_the_workers_are_away_for_a_time() -> None:
    stays = CrowdClass("stays", 50, 1.0)
    leaves = CrowdClass("leaves", 50, 1.0, absences=WrittenAbsences(((10.0, 30.0),)))
    found = simulate_alone(Crowd((stays, leaves)), 100, _rng())
    assert found.makespan_s == pytest.approx(110.0)
    assert found.computed_share == pytest.approx([1.0, 90 / 110])


def test_drawn_lives_are_those_of_single_draws() -> None:
    rng, single = np.random.default_rng(1), random.Random(1)
    drawn = LIVES.draw_lives(rng.random(20_000))
    singles = [LIVES.draw_life(single) for _ in range(20_000)]
    ages = np.array([1.0, 3.0, 4.0, 5.0, 8.0, 9.0, 12.0])
    alive = [float(np.mean(drawn > age)) for age in ages]
    assert alive == pytest.approx(LIVES.survival(ages).tolist(), abs=0.01)
    assert np.mean(drawn) == pytest.approx(np.mean(singles), rel=0.02)


def test_revoked_machines_come_back_or_not() -> None:
    back = DrawnAbsences(LIVES, back_after_s=2.0, faster=2.0)
    crowd = Crowd((CrowdClass("edge", 4000, 0.5, absences=back),))
    mean_life_s = float(np.mean(LIVES.draw_lives(np.random.default_rng(2).random(50_000)))) / 2
    found = simulate_alone(crowd, 2000, _rng())
    assert found.computed_share[0] == pytest.approx(mean_life_s / (mean_life_s + 2), rel=0.02)
    gone = Crowd((CrowdClass("edge", 4, 0.5, absences=DrawnAbsences(LIVES)),))
    for simulate in (
        lambda: simulate_alone(gone, 10**6, _rng()),
        lambda: simulate_server_rounds(gone, SERVICE, 10**6, _rng()),
        lambda: simulate_served_workers(
            gone, SERVICE, 10**6, _rng(), partial(BoundedStalenessRule, staleness=0)
        ),
    ):
        with pytest.raises(InputError, match="all workers have left"):
            simulate()


def test_absences_follow_each_other() -> None:
    with pytest.raises(InputError, match="must follow each other"):
        WrittenAbsences(((3.0, 2.0),))
    here = Attendance([WrittenAbsences(((0.0, 4.0), (6.0, 9.0)))], [slice(0, 2)], _rng())
    assert here.follow(np.array([1.0, 5.0])).tolist() == [4.0, 5.0]
    assert here.leaves_s.tolist() == [6.0, 6.0]
    assert here.follow(np.array([7.0, 5.5])).tolist() == [9.0, 5.5]


def test_workers_that_never_complete_a_step_are_reported() -> None:
    short = DrawnAbsences(Lifetimes((Life(0.5),)), back_after_s=0.1)
    crowd = Crowd((CrowdClass("edge", 3, 1.0, absences=short),))
    with pytest.raises(InputError, match="no step is complete"):
        simulate_server_rounds(crowd, CrowdServer(0.0), 3, _rng())
