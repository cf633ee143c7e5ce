"""Simulated inference against queueing theory and sums by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from laggard.core.cost_model.links import NetworkHop
from laggard.core.serving.arrivals import draw_arrivals
from laggard.core.serving.outcome import summarize_requests
from laggard.core.serving.request_order import REQUEST_ORDERS, RequestOrderName
from laggard.core.serving.served_network import ServedNetwork
from laggard.core.serving.split_point import LinkBelief, LinkState, SplitChooser, SplitName
from laggard.core.simulation.network import FRAMING_OVERHEAD, SimulatedNetwork
from laggard.core.simulation.serving import (
    ServingDevice,
    ServingSimulation,
    SimulatedRequest,
)

NO_LINKS = SimulatedNetwork({})
RATE_MBPS, ROUND_TRIP_S = 8.0, 0.04
LINKS = SimulatedNetwork(
    {
        ends: NetworkHop(ends, RATE_MBPS, ROUND_TRIP_S * 1e3)
        for ends in (("edge", "cloud"), ("cloud", "edge"))
    }
)
SPLIT = ServedNetwork("n", (0.2, 0.3), (0.02, 0.03), (40_000.0, 10_000.0), 0.0)


def serve_alone(
    order: RequestOrderName, times: tuple[float, ...], lengths: tuple[float, ...], blocks: int = 1
) -> list[float]:
    """Return the latencies of requests at one device, each for a network of its own length."""
    networks = tuple(ServedNetwork(str(each), (each / blocks,) * blocks) for each in lengths)
    device = ServingDevice("edge", networks, order)
    requests = [SimulatedRequest("edge", number, time) for number, time in enumerate(times)]
    answered = ServingSimulation([device], NO_LINKS).run(requests)
    return [each.latency_s or math.nan for each in answered]


def test_a_queue_waits_as_pollaczek_and_khinchine_say() -> None:
    rate, length_s, count = 5.0, 0.12, 60_000
    network = ServedNetwork("n", (length_s,))
    device = ServingDevice("edge", (network,))
    requests = [SimulatedRequest("edge", 0, each) for each in draw_arrivals(rate, count, (3,))]
    answered = ServingSimulation([device], NO_LINKS).run(requests)
    load = rate * length_s
    expected_s = length_s + load * length_s / (2 * (1 - load))
    assert summarize_requests(answered).mean_s == pytest.approx(expected_s, rel=0.03)


@pytest.mark.parametrize("order", REQUEST_ORDERS)
def test_no_order_creates_or_loses_work(order: RequestOrderName) -> None:
    rng = np.random.default_rng(5)
    lengths = tuple(rng.uniform(0.1, 1.0, 50).tolist())
    times = tuple(np.cumsum(rng.exponential(0.5, 50)).tolist())
    ends_s = [
        time + latency
        for time, latency in zip(times, serve_alone(order, times, lengths, 4), strict=True)
    ]
    # The device is never idle while anything waits, so all orders end at the same time.
    now_s = 0.0
    for time, length in zip(times, lengths, strict=True):
        now_s = max(now_s, time) + length
    assert max(ends_s) == pytest.approx(now_s)


def test_a_short_request_overtakes_at_the_next_border() -> None:
    latencies = serve_alone("sjf", (0.0, 0.1), (1.0, 0.2), blocks=4)
    # The long one has computed a block of 0.25 s, and the short one its four before it goes on.
    assert latencies == pytest.approx([1.2, 0.35])
    assert serve_alone("fcfs", (0.0, 0.1), (1.0, 0.2), blocks=4) == pytest.approx([1.0, 1.1])


@pytest.mark.parametrize(
    ("split", "cut"), [("none", 2), ("server", 0), ("static", 1), ("dynamic", 1)]
)
def test_the_latency_of_a_cut_is_its_parts(split: SplitName, cut: int) -> None:
    network = SPLIT if cut != 1 else ServedNetwork("n", (0.01, 0.9), *_far(SPLIT))
    chooser = SplitChooser(split, LinkBelief(LinkState(RATE_MBPS, ROUND_TRIP_S)))
    device = ServingDevice("edge", (network,), chooser=chooser, server="cloud")
    simulation = ServingSimulation([device], LINKS)
    (answered,) = simulation.run([SimulatedRequest("edge", 0, 1.0)])
    expected_s = sum(network.device_s[:cut])
    if cut < 2:
        bits = network.cut_bytes[cut] * 8 * FRAMING_OVERHEAD
        expected_s += bits / (RATE_MBPS * 1e6) + ROUND_TRIP_S + sum(network.server_s[cut:])
    assert simulation.cuts == {0: cut}
    assert answered.latency_s == pytest.approx(expected_s)


def _far(network: ServedNetwork) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    return network.server_s, network.cut_bytes, network.answer_bytes


def test_requests_beyond_the_queue_are_shed() -> None:
    device = ServingDevice("edge", (ServedNetwork("n", (1.0,)),), most_waiting=2)
    requests = [SimulatedRequest("edge", 0, 0.01 * number) for number in range(5)]
    answered = ServingSimulation([device], NO_LINKS).run(requests)
    assert [each.answered_s for each in answered] == [1.0, 2.0, None, None, None]


def test_a_probe_tells_that_the_link_is_better_now() -> None:
    believed = LinkBelief(LinkState(0.01, ROUND_TRIP_S))
    device = ServingDevice(
        "edge", (SPLIT,), chooser=SplitChooser("dynamic", believed), server="cloud", probe_s=1.0
    )
    simulation = ServingSimulation([device], LINKS)
    simulation.run([SimulatedRequest("edge", 0, float(second)) for second in range(10)])
    assert simulation.cuts[0] == 2
    assert simulation.cuts[9] == 0
    assert believed.state.rate_mbps == pytest.approx(RATE_MBPS / FRAMING_OVERHEAD, rel=0.1)


def test_other_paces_take_other_times() -> None:
    device = ServingDevice("edge", (ServedNetwork("n", (1.0, 1.0)),))
    requests = [SimulatedRequest("edge", 0, 0.0, pace=(0.5, 0.25))]
    (answered,) = ServingSimulation([device], NO_LINKS).run(requests)
    assert answered.latency_s == pytest.approx(0.75)
