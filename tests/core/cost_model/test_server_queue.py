"""Speeds of a closed queue, against bounds, a simulation by events, and known services."""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.server_queue import ServerQueue, ServiceCost, fit_server_queue
from laggard.core.errors import InputError


def play(
    think_s: float, service_s: float, workers: int, spread: float, steps: int = 20_000
) -> float:
    """Steps per second of workers that really queue, with think times that vary."""
    draw = np.random.default_rng(5)
    waiting = [(float(draw.random() * think_s), rank) for rank in range(workers)]
    heapq.heapify(waiting)
    free_s = 0.0
    for _ in range(steps):
        arrival_s, rank = heapq.heappop(waiting)
        free_s = max(free_s, arrival_s) + service_s
        think = think_s * float(draw.lognormal(-(spread**2) / 2, spread))
        heapq.heappush(waiting, (free_s + think, rank))
    return steps / free_s


@given(
    think=st.floats(0.0, 10.0),
    service=st.floats(1e-3, 10.0),
    workers=st.integers(1, 40),
)
def test_no_speed_exceeds_its_bounds(think: float, service: float, workers: int) -> None:
    speed = ServerQueue(think, service).speed(workers)
    alone = 1.0 / (think + service)
    assert speed <= min(workers * alone, 1.0 / service) * (1 + 1e-9)
    assert speed >= alone * (1 - 1e-9)


@given(think=st.floats(0.1, 10.0), service=st.floats(1e-3, 10.0))
def test_more_workers_are_never_slower(think: float, service: float) -> None:
    queue = ServerQueue(think, service)
    speeds = [queue.speed(workers) for workers in range(1, 20)]
    assert all(more >= less * (1 - 1e-9) for less, more in itertools.pairwise(speeds))


@pytest.mark.parametrize("workers", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("service_s", [0.02, 0.1, 0.3])
def test_the_speed_is_that_of_workers_that_really_queue(workers: int, service_s: float) -> None:
    queue = ServerQueue(1.0 - service_s, service_s)
    played = play(queue.think_s, service_s, workers, spread=0.5)
    assert queue.speed(workers) == pytest.approx(played, rel=0.08)


@given(service=st.floats(0.02, 0.6), scale=st.floats(1e-3, 1e3))
def test_a_queue_is_found_again(service: float, scale: float) -> None:
    queue = ServerQueue((1.0 - service) * scale, service * scale)
    speeds = {workers: queue.speed(workers) for workers in range(1, 3 + math.ceil(1 / service))}
    found = fit_server_queue(speeds)
    assert found.service_s == pytest.approx(queue.service_s, rel=0.03)
    assert found.knee == pytest.approx(queue.knee, rel=0.05)


def test_few_speeds_say_little_and_the_expected_service_says_the_rest() -> None:
    queue = ServerQueue(0.78, 0.22)
    speeds = {workers: queue.speed(workers) for workers in (1, 2)}
    found = fit_server_queue(speeds, expected_service_s=0.23)
    assert found.knee == pytest.approx(queue.knee, abs=0.3)
    assert found.speed(8) == pytest.approx(queue.speed(8), rel=0.06)


def test_speeds_that_contradict_the_expected_service_win() -> None:
    queue = ServerQueue(0.7, 0.3)
    speeds = {workers: queue.speed(workers) for workers in (1, 2, 3, 6)}
    found = fit_server_queue(speeds, expected_service_s=0.6)
    assert found.service_s == pytest.approx(0.3, rel=0.05)


def test_a_service_is_the_sum_of_its_tensors_and_bytes() -> None:
    cost = ServiceCost(tensor_s=1e-4, byte_s=2e-9)
    sizes = [(50, 2.8e6), (104, 7.4e6), (216, 1e8)]
    found = ServiceCost.fit([(*size, cost.service_s(*size)) for size in sizes])
    assert found.tensor_s == pytest.approx(1e-4, rel=1e-6)
    assert found.byte_s == pytest.approx(2e-9, rel=1e-6)


@pytest.mark.parametrize(
    "speeds", [{}, {0: 1.0}, {1: 0.0}, {1: -1.0}, {1: math.nan}, {1: math.inf}]
)
def test_impossible_speeds_are_refused(speeds: dict[int, float]) -> None:
    with pytest.raises(InputError, match="above 0"):
        fit_server_queue(speeds)


@pytest.mark.parametrize("expected", [0.0, -1.0, math.nan])
def test_an_impossible_service_is_refused(expected: float) -> None:
    with pytest.raises(InputError, match="above 0"):
        fit_server_queue({1: 1.0}, expected)


@pytest.mark.parametrize("services", [[], [(1, 1.0, 1.0)], [(1, 1.0, 1.0), (0, 1.0, 1.0)]])
def test_too_few_services_are_refused(services: list[tuple[int, float, float]]) -> None:
    with pytest.raises(InputError, match="two models"):
        ServiceCost.fit(services)
