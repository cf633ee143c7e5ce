"""How measurements are computed from what the probes saw."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import EmulationError, PrerequisiteError
from laggard.network_emulation.fidelity.measure import (
    RateProbe,
    busy_cores,
    measure_loss,
    measure_rate,
    measure_rtt,
)
from laggard.network_emulation.fidelity.probes.echo import (
    LARGE_BYTES,
    SMALL_BYTES,
    echo_request,
    round_trip_ms,
)
from laggard.network_emulation.fidelity.probes.stream import served_mbps
from laggard.network_emulation.forked import run_forked
from laggard.network_emulation.link_plan import PACKET_BYTES, QUEUE_PACKETS


@given(st.floats(0.0, 500.0), st.sampled_from([None, 0.1, 1.0, 20.0, 1000.0]))
def test_the_round_trip_of_an_empty_packet_does_not_depend_on_the_rate(
    rtt_ms: float, rate_mbps: float | None
) -> None:
    def took_ns(payload: int) -> int:
        wire = payload + 42
        return round(rtt_ms * 1e6 + (0.0 if rate_mbps is None else 2 * wire * 8000 / rate_mbps))

    assert round_trip_ms([took_ns(SMALL_BYTES)] * 3, [took_ns(LARGE_BYTES)] * 3) == pytest.approx(
        rtt_ms, abs=1e-5
    )


def test_medians_ignore_stragglers_and_noise_does_not_make_the_size_pay_back() -> None:
    assert round_trip_ms([10_000_000, 10_000_000, 900_000_000], [9_900_000] * 3) == pytest.approx(
        10.0
    )
    assert round_trip_ms([], [1]) is None


@given(st.integers(0, 65535), st.integers(0, 65535), st.sampled_from([16, 1016]))
def test_an_echo_request_sums_to_all_ones(identifier: int, number: int, size: int) -> None:
    packet = echo_request(identifier, number, size)
    total = sum(struct.unpack(f"!{len(packet) // 2}H", packet))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == 0xFFFF
    assert len(packet) == 8 + size


def test_served_rate_counts_from_the_first_arrival() -> None:
    assert served_mbps([(1.0, 500_000), (1.5, 600_000), (2.0, 1_750_000)]) == pytest.approx(10.0)
    assert served_mbps([(1.0, 5)]) == 0.0
    assert served_mbps([]) == 0.0


@pytest.mark.parametrize(
    ("rate_mbps", "delay_ms", "window_bytes", "window_s"),
    [
        (1000.0, 5.0, 625_000 + 600_000, 0.3),
        (100.0, 5.0, 62_500 + 312_500, 0.3),
        (0.5, 0.0, 12_000, 1.45),
    ],
)
def test_windows_follow_the_rate(
    rate_mbps: float, delay_ms: float, window_bytes: int, window_s: float
) -> None:
    probe = RateProbe("a", "b", rate_mbps, delay_ms, 2 * delay_ms)
    assert probe.window_bytes == pytest.approx(window_bytes, rel=0.01)
    assert probe.window_s == pytest.approx(window_s, rel=0.01)
    assert probe.warm_up_s < 2.0


@given(st.floats(0.01, 2000.0), st.floats(0.0, 500.0))
def test_bursts_of_a_round_trip_are_paced_to_what_a_queue_holds(
    rate_mbps: float, delay_ms: float
) -> None:
    """Slow start sends a round trip's worth at twice the rate; half of that, or what pacing leaves
    of it, has to queue."""
    probe = RateProbe("a", "b", rate_mbps, delay_ms, 2 * delay_ms)
    pipe_bytes = rate_mbps * 125.0 * 2 * delay_ms
    queue_bytes = QUEUE_PACKETS * PACKET_BYTES
    if probe.paced_bytes_per_s is None:
        assert pipe_bytes <= queue_bytes / 2 * 1.000001
    else:
        excess = probe.paced_bytes_per_s / (rate_mbps * 1.25e5) - 1
        assert 0 < excess <= 0.11
        assert excess * pipe_bytes <= queue_bytes * 0.51


def test_nothing_to_measure_starts_nothing() -> None:
    assert measure_rtt([], {}) == {}
    assert measure_rate([], {}) == {}
    assert measure_loss([], {}) == {}


def _refuse() -> int:
    raise PrerequisiteError("no TUN", "modprobe tun")


def _stumble() -> int:
    raise ValueError("a number")


def test_a_forked_function_answers_or_fails_as_it_would_here() -> None:
    with busy_cores(1):
        assert run_forked("test", lambda: {"answer": 42}) == {"answer": 42}
    with pytest.raises(PrerequisiteError) as refused:
        run_forked("test", _refuse)
    assert refused.value.grant == "modprobe tun"
    with pytest.raises(EmulationError, match="ValueError: a number"):
        run_forked("test", _stumble)
