"""Cuts against an enumeration of their own, and what a device believes of its link."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.serving.served_network import ServedNetwork
from laggard.core.serving.split_point import (
    LEAST_GAIN,
    LinkBelief,
    LinkState,
    QueueState,
    SplitChooser,
    is_feasible,
    predict_latencies,
)

SECONDS = st.floats(0.001, 2.0)
BYTES = st.floats(10.0, 1e6)


@st.composite
def networks(draw: st.DrawFn) -> ServedNetwork:
    blocks = draw(st.integers(1, 6))

    def some(values: st.SearchStrategy[float]) -> tuple[float, ...]:
        return tuple(draw(st.lists(values, min_size=blocks, max_size=blocks)))

    return ServedNetwork("n", some(SECONDS), some(SECONDS), some(BYTES), 100.0)


@given(networks(), st.floats(0.1, 100), st.floats(0, 0.5), SECONDS, SECONDS)
def test_the_cut_is_the_best_of_all(
    network: ServedNetwork, rate_mbps: float, round_trip_s: float, own_s: float, far_s: float
) -> None:
    link, queues = LinkState(rate_mbps, round_trip_s), QueueState(own_s, server_s=far_s)
    latencies = []
    for cut in range(network.blocks + 1):
        total = sum(network.device_s[:cut]) + (own_s if cut else 0.0)
        if cut < network.blocks:
            total += network.cut_bytes[cut] * 8e-6 / rate_mbps + round_trip_s
            total += far_s + sum(network.server_s[cut:])
        latencies.append(total)
    assert predict_latencies(network, link, queues) == pytest.approx(latencies)
    chosen = SplitChooser("dynamic", LinkBelief(link)).choose(network, queues)
    assert latencies[chosen] == pytest.approx(min(latencies))


def test_a_cut_stays_until_another_one_saves_enough() -> None:
    network = ServedNetwork("n", (0.1, 0.1), (0.01, 0.01), (25_000.0, 12_500.0))
    belief = LinkBelief(LinkState(1.0, 0.0))
    chooser = SplitChooser("dynamic", belief)
    # All at the device takes 0.2 s, and the sample takes 0.2 s at 1 Mbit/s.
    assert chooser.choose(network, QueueState()) == 2
    belief.state = LinkState(1.12, 0.0)
    latencies = predict_latencies(network, belief.state, QueueState())
    assert (1 - LEAST_GAIN) * latencies[2] < min(latencies) < latencies[2]
    assert chooser.choose(network, QueueState()) == 2
    belief.state = LinkState(4.0, 0.0)
    assert chooser.choose(network, QueueState()) == 0
    assert chooser.switches == 1


def test_two_links_that_are_nearly_alike_cause_no_switch() -> None:
    network = ServedNetwork("n", (0.1, 0.1), (0.0, 0.0), (25_000.0, 1e9))
    belief = LinkBelief(LinkState(1.0, 0.0))
    chooser = SplitChooser("dynamic", belief)
    for turn in range(100):
        belief.state = LinkState(1.0 + 0.02 * (turn % 2), 0.0)
        chooser.choose(network, QueueState())
    assert chooser.switches == 0


def test_a_static_cut_never_changes() -> None:
    network = ServedNetwork("n", (1.0,), (0.1,), (1000.0,))
    belief = LinkBelief(LinkState(10.0, 0.0))
    chooser = SplitChooser("static", belief)
    assert chooser.choose(network, QueueState()) == 0
    belief.state = LinkState(1e-6, 0.0)
    assert chooser.choose(network, QueueState()) == 0


def test_without_a_server_the_device_computes_everything() -> None:
    network = ServedNetwork("n", (1.0, 1.0))
    assert SplitChooser("dynamic").choose(network, QueueState()) == 2


def test_one_place_for_all_blocks() -> None:
    network = ServedNetwork("n", (1.0, 1.0), (0.1, 0.1), (1e3, 1e3))
    belief = LinkBelief(LinkState(1.0, 0.0))
    assert SplitChooser("none", belief).choose(network, QueueState()) == 2
    assert SplitChooser("server", belief).choose(network, QueueState()) == 0


def test_load_moves_requests() -> None:
    network = ServedNetwork("n", (0.5, 0.5), (0.1, 0.1), (1e5, 1e5))
    chooser = SplitChooser("dynamic", LinkBelief(LinkState(8.0, 0.02)))
    assert chooser.choose(network, QueueState(server_s=0.0)) == 0
    assert chooser.choose(network, QueueState(server_s=5.0)) == 2


@given(st.floats(0.2, 50), st.floats(0.001, 0.3), st.floats(0.2, 50), st.floats(0.001, 0.3))
def test_belief_becomes_the_truth(
    rate_mbps: float, round_trip_s: float, first_mbps: float, first_s: float
) -> None:
    truth, belief = LinkState(rate_mbps, round_trip_s), LinkBelief(LinkState(first_mbps, first_s))
    for _ in range(300):
        for size_bytes in (50.0, 200_000.0):
            belief.learn(size_bytes, truth.predict_s(size_bytes))
    for size_bytes in (200_000.0, 400_000.0):
        assert belief.state.predict_s(size_bytes) == pytest.approx(
            truth.predict_s(size_bytes), rel=0.1
        )


def test_a_deadline_that_no_cut_meets() -> None:
    assert is_feasible([0.3, 0.2], 0.2)
    assert not is_feasible([0.3, 0.2], 0.1)
    assert is_feasible([0.3], math.inf)


def test_what_is_on_the_link_already_delays_the_next_message() -> None:
    chooser = SplitChooser("dynamic", LinkBelief(LinkState(8.0, 0.1)))
    chooser.note_sent(1, 1e6, now_s=10.0)
    chooser.note_sent(2, 1e6, now_s=10.5)
    # Two seconds of bytes, of which half a second has passed.
    assert chooser.predict_link_wait_s(10.5) == pytest.approx(1.5)
    assert chooser.predict_link_wait_s(20.0) == 0.0
    chooser.note_answered(1)
    assert chooser.predict_link_wait_s(10.5) == pytest.approx(1.0)


def test_the_link_is_free_again_while_the_device_computes() -> None:
    network = ServedNetwork("n", (0.4, 0.4), (0.0, 0.0), (1e5, 1e5))
    latencies = predict_latencies(network, LinkState(8.0, 0.0), QueueState(link_s=0.3))
    assert latencies == pytest.approx([0.4, 0.5, 0.8])
