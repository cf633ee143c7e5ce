"""Orders of requests against known best schedules, and against the papers' formulas."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.serving.request_order import (
    REQUEST_ORDERS,
    SLACK_WEIGHT,
    RequestOrderName,
    WaitingRequest,
    choose_request,
)


def wait(
    number: int,
    alone_s: float,
    *,
    arrived_s: float = 0.0,
    left_s: float | None = None,
    deadline_s: float = math.inf,
    pace: float = 1.0,
    paused_s: float = 0.0,
) -> WaitingRequest:
    left_s = alone_s if left_s is None else left_s
    return WaitingRequest(number, arrived_s, deadline_s, alone_s, left_s, paused_s, pace)


def list_order(order: RequestOrderName, requests: list[WaitingRequest]) -> list[int]:
    """Return the order in which requests are served, one after another."""
    waiting, now_s, served = list(requests), 0.0, []
    while waiting:
        chosen = choose_request(order, waiting, now_s)
        waiting.remove(chosen)
        now_s += chosen.left_s
        served.append(chosen.number)
    return served


def sum_slowdowns(lengths: list[float], order: list[int]) -> float:
    now_s, total = 0.0, 0.0
    for number in order:
        now_s += lengths[number]
        total += now_s / lengths[number]
    return total


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_the_shortest_first_has_the_least_normalized_turnaround(lengths: list[float]) -> None:
    requests = [wait(number, length) for number, length in enumerate(lengths)]
    best = min(sum_slowdowns(lengths, list(order)) for order in permutations(range(len(lengths))))
    for order in ("sjf", "dynamic", "sparsity_aware", "static"):
        assert sum_slowdowns(lengths, list_order(order, requests)) == pytest.approx(best)


@pytest.mark.parametrize("order", REQUEST_ORDERS)
def test_every_order_serves_all_requests_once(order: RequestOrderName) -> None:
    requests = [wait(number, 1.0 + number % 3, deadline_s=5.0) for number in range(7)]
    assert sorted(list_order(order, requests)) == list(range(7))


def test_requests_that_are_alike_are_served_in_their_order() -> None:
    for order in REQUEST_ORDERS:
        assert choose_request(order, [wait(3, 1.0), wait(1, 1.0), wait(2, 1.0)], 0.0).number == 1


def test_the_first_one_is_served_first() -> None:
    early, late = wait(7, 9.0, arrived_s=1.0), wait(1, 0.1, arrived_s=2.0)
    assert choose_request("fcfs", [late, early], 5.0) is early


def test_what_is_left_counts_instead_of_the_whole_length() -> None:
    begun, new = wait(0, 10.0, left_s=0.5, paused_s=9.5), wait(1, 1.0, arrived_s=9.5, paused_s=9.5)
    assert choose_request("sjf", [begun, new], 9.5) is new
    assert choose_request("dynamic", [begun, new], 9.5) is begun


def test_a_pace_tells_what_is_really_left() -> None:
    sparse = wait(0, 4.0, left_s=2.0, pace=0.3)
    dense = wait(1, 2.0, left_s=1.0, pace=1.0)
    assert choose_request("dynamic", [sparse, dense], 0.0) is dense
    assert choose_request("sparsity_aware", [sparse, dense], 0.0) is sparse


def test_of_two_alike_the_one_with_less_slack_goes_first() -> None:
    urgent, patient = wait(1, 1.0, deadline_s=2.0), wait(0, 1.0, deadline_s=20.0)
    assert choose_request("dynamic", [urgent, patient], 0.0) is urgent
    assert choose_request("static", [urgent, patient], 0.0) is urgent


def test_the_weight_of_slack_is_the_papers() -> None:
    # One has 1 s less to compute, the other one has less slack: they weigh the same at 100 s.
    short, urgent = wait(0, 1.0, deadline_s=120.0), wait(1, 2.0, deadline_s=21.0)
    difference_s = (119.0 - 19.0) * SLACK_WEIGHT
    assert difference_s == pytest.approx(1.0)
    more_urgent = wait(1, 2.0, deadline_s=20.9)
    assert choose_request("dynamic", [short, more_urgent], 0.0) is more_urgent
    less_urgent = wait(1, 2.0, deadline_s=21.1)
    assert choose_request("dynamic", [short, less_urgent], 0.0) is short
    assert urgent.deadline_s == 21.0


def test_a_request_without_slack_is_not_more_urgent_the_later_it_is() -> None:
    late, later = wait(0, 1.0, deadline_s=0.0), wait(1, 1.0, deadline_s=-100.0)
    assert choose_request("dynamic", [later, late], 5.0) is late


def test_tokens_keep_long_requests_from_starving() -> None:
    # The long one has waited twice its length, so it has three tokens; the short one has one.
    long, short = wait(0, 5.0, arrived_s=0.0), wait(1, 0.1, arrived_s=10.0)
    assert choose_request("prema", [long, short], 10.0) is long
    assert choose_request("sjf", [long, short], 10.0) is short
