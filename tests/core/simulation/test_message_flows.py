"""Messages that share a way: fair parts of its rate, and slow times of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.links import NetworkHop
from laggard.core.simulation.event_loop import EventLoop
from laggard.core.simulation.message_flows import MessageFlows, compute_fair_rates
from laggard.core.simulation.network import (
    FRAMING_OVERHEAD,
    Bottleneck,
    SimulatedNetwork,
    SlowPeriod,
)

# --- messages that share a way


@given(
    st.lists(
        st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), min_size=1, max_size=8
    ),
    st.lists(st.floats(1.0, 100.0), min_size=5, max_size=5),
)
def test_nobody_could_have_more_without_somebody_who_has_no_more_having_less(
    routes: list[list[int]], rates: list[float]
) -> None:
    given = compute_fair_rates(routes, dict(enumerate(rates)))
    used = [
        sum(rate for rate, route in zip(given, routes, strict=True) if way in route)
        for way in range(5)
    ]
    assert all(part <= rate * (1 + 1e-9) for part, rate in zip(used, rates, strict=True))
    for rate, route in zip(given, routes, strict=True):
        held_up_by = [
            way
            for way in route
            if used[way] >= rates[way] * (1 - 1e-9)
            and all(
                other <= rate * (1 + 1e-9)
                for other, each in zip(given, routes, strict=True)
                if way in each
            )
        ]
        assert held_up_by


def arrivals(
    network: SimulatedNetwork, sent: Sequence[tuple[float, str, str, float]]
) -> list[float]:
    loop, come = EventLoop(), [0.0] * len(sent)
    flows = MessageFlows(loop, network)

    def note(index: int) -> None:
        come[index] = loop.now_s

    for index, (when_s, src, dst, megabits) in enumerate(sent):
        size = megabits * 1e6 / 8 / FRAMING_OVERHEAD
        loop.schedule(when_s, partial(flows.send, src, dst, size, partial(note, index)))
    loop.run()
    return come


WAYS = {
    (src, dst): NetworkHop((src, dst), 10.0, 20.0) for src in "abs" for dst in "abs" if src != dst
}


def test_a_message_takes_its_bytes_and_its_way() -> None:
    assert arrivals(SimulatedNetwork(WAYS), [(1.0, "a", "s", 5.0)]) == pytest.approx([1.51])


def test_two_on_one_way_have_half_of_it_each() -> None:
    """The second comes when half of the first is through: both have half, until the first is."""
    assert arrivals(
        SimulatedNetwork(WAYS), [(0.0, "a", "s", 10.0), (0.5, "a", "s", 10.0)]
    ) == pytest.approx([1.51, 2.01])


def test_what_is_shared_is_shared_by_those_of_other_ways_too() -> None:
    shared = (Bottleneck("up", frozenset({("a", "s"), ("b", "s")}), 12.0),)
    come = arrivals(SimulatedNetwork(WAYS, shared), [(0.0, "a", "s", 6.0), (0.0, "b", "s", 12.0)])
    # 6 Mbit/s each for a second; then the second has 10, its own way's.
    assert come == pytest.approx([1.01, 1.61])


def test_a_slow_time_holds_up_what_falls_into_it() -> None:
    slow = (SlowPeriod(0.5, 2.5, frozenset({("a", "s")}), 1.0),)
    assert arrivals(SimulatedNetwork(WAYS, (), slow), [(0.0, "a", "s", 10.0)]) == pytest.approx(
        [2.5 + 0.3 + 0.01]
    )
