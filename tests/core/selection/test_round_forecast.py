"""Forecasts of clients' rounds against rounds whose times are known."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.selection.round_forecast import USUAL_SAMPLE_S, ClientProfile, RoundForecast

PROFILES = st.builds(
    ClientProfile,
    share=st.floats(0.001, 4),
    down_mbps=st.floats(0.1, 1e4) | st.none(),
    up_mbps=st.floats(0.1, 1e4) | st.none(),
    delay_s=st.floats(0, 1),
)
CLIENTS = st.lists(st.tuples(PROFILES, st.integers(1, 1000)), min_size=2, max_size=8)
MODEL_BYTES = 1e5


def compute_true_s(profile: ClientProfile, samples: int, sample_s: float) -> float:
    bits = 8 * MODEL_BYTES
    rates = (profile.down_mbps or math.inf, profile.up_mbps or math.inf)
    on_links_s = sum(bits / (1e6 * rate) for rate in rates)
    return profile.delay_s + on_links_s + samples * sample_s / profile.share


@given(CLIENTS, st.floats(1e-3, 1.0), st.data())
def test_one_answer_shows_how_long_all_others_take(
    clients: list[tuple[ClientProfile, int]], sample_s: float, data: st.DataObject
) -> None:
    profiles, samples = zip(*clients, strict=True)
    forecast = RoundForecast(profiles, samples, MODEL_BYTES)
    true_s = [compute_true_s(*each, sample_s) for each in clients]
    known = data.draw(st.integers(0, len(clients) - 1))
    assert forecast.predict({known: true_s[known]}) == pytest.approx(true_s, rel=1e-3)


@given(CLIENTS)
def test_without_an_answer_clients_differ_as_they_will(
    clients: list[tuple[ClientProfile, int]],
) -> None:
    profiles, samples = zip(*clients, strict=True)
    found = RoundForecast(profiles, samples, MODEL_BYTES).predict({})
    assert found == pytest.approx([compute_true_s(*each, USUAL_SAMPLE_S) for each in clients])


def test_what_a_client_took_last_is_its_own_forecast() -> None:
    forecast = RoundForecast((ClientProfile(),) * 2, (10, 10), 0.0)
    assert forecast.predict({0: 7.0, 1: 3.0}) == [7.0, 3.0]


def test_an_answer_faster_than_its_links_gives_no_negative_time() -> None:
    slow = ClientProfile(delay_s=5.0)
    assert RoundForecast((slow, ClientProfile()), (10, 10), 0.0).predict({0: 1.0}) == [1.0, 0.0]


def test_clients_without_samples_show_nothing() -> None:
    forecast = RoundForecast((ClientProfile(),) * 2, (0, 10), 0.0)
    assert forecast.predict({0: 7.0}) == [7.0, 10 * USUAL_SAMPLE_S]


def test_energy_is_by_sample_and_price_by_hour() -> None:
    known = ClientProfile(sample_j=0.5, hour_price=36.0)
    forecast = RoundForecast((known, ClientProfile()), (20, 20), 0.0)
    assert [forecast.compute_energy_j(each) for each in (0, 1)] == [10.0, None]
    assert [forecast.compute_price(each, 2.0) for each in (0, 1)] == [pytest.approx(0.02), None]
