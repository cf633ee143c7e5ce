"""Joules from power readings, against integrals known by other means."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.hosts import Host
from laggard.layers_services.g5k.energy import METRICS, PowerSample, energy_j, metered
from laggard.layers_services.machine import Access, Machine

WATTS = st.floats(min_value=0, max_value=3000)


@given(
    watts=WATTS, start_s=st.floats(0, 1e5), lasts_s=st.floats(0.1, 1e4), offset_s=st.floats(-30, 30)
)
def test_level_power_times_time(
    watts: float, start_s: float, lasts_s: float, offset_s: float
) -> None:
    samples = [PowerSample(start_s + offset_s, watts)]
    end_s = start_s + lasts_s
    assert energy_j(samples, start_s, end_s) == pytest.approx(
        watts * (end_s - start_s), rel=1e-6, abs=1e-6
    )


def test_a_ramp_is_integrated_between_its_readings() -> None:
    ramp = [PowerSample(float(second), 10.0 * second) for second in (8, 0, 4, 2, 6, 10)]
    assert energy_j(ramp, 3.0, 7.0) == pytest.approx(5 * (7.0**2 - 3.0**2))


def test_a_wave_read_often_has_its_mean() -> None:
    wave = [PowerSample(t / 50, 200 + 80 * math.sin(2 * math.pi * t / 50)) for t in range(501)]
    assert energy_j(wave, 0.0, 10.0) == pytest.approx(2000, rel=1e-6)


def test_a_node_with_two_meters_draws_both() -> None:
    samples = [
        PowerSample(t, watts, meter)
        for t in (0.0, 5.0)
        for meter, watts in (("psu 1", 60.0), ("psu 2", 40.0))
    ]
    assert energy_j(samples, 0.0, 5.0) == pytest.approx(500)


@pytest.mark.parametrize(("samples", "end_s"), [([], 5.0), ([PowerSample(0.0, 60.0)], 0.0)])
def test_nothing_without_readings_or_time(samples: list[PowerSample], end_s: float) -> None:
    assert energy_j(samples, 0.0, end_s) is None


def test_machines_are_asked_for_the_meter_that_they_have() -> None:
    def machine(cluster: str, number: int) -> Machine:
        host = Host(f"{cluster}.{number}", "edge", "trainer", 1, number, f"10.0.0.{number}")
        return Machine(
            host, Access(f"{cluster}-{number}.somewhere.grid5000.fr"), "somewhere", cluster
        )

    machines = [machine("gemini", 1), machine("gemini", 2), machine("no-such-cluster", 3)]
    found = metered(machines)
    assert set(found) <= set(METRICS.values())
    assert [each.host.name for some in found.values() for each in some] == ["gemini.1", "gemini.2"]
