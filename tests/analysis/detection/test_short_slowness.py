"""Slow steps that are too few for an interval."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.detection.short_slowness import SlowSteps, find_slow_steps
from laggard.analysis.tables.columns import FloatArray

STEPS, RANKS, LEAST_S = 200, 6, 2.0


def _find(logs: FloatArray, *, repeated: bool = True) -> tuple[tuple[SlowSteps, ...], ...]:
    """The slow steps of ranks whose steps usually take a second, less than 1 % of the run."""
    examined = np.ones_like(logs, dtype=np.bool_)
    return find_slow_steps(logs, np.exp(logs), examined, LEAST_S, repeated=repeated)


def _noise(seed: int) -> FloatArray:
    return np.random.default_rng(seed).normal(0.0, 0.05, (STEPS, RANKS))


@given(st.integers(0, 50), st.integers(0, STEPS - 1), st.integers(0, RANKS - 1))
def test_one_long_step_is_found_where_it_is(seed: int, step: int, rank: int) -> None:
    logs = _noise(seed)
    logs[step, rank] = np.log(20.0)
    found = _find(logs)
    (slow,) = found[rank]
    assert slow.steps.tolist() == [step]
    assert not any(found[other] for other in range(RANKS) if other != rank)


@given(st.integers(0, 200))
def test_noise_has_no_slow_steps(seed: int) -> None:
    assert not any(_find(_noise(seed)))


@given(st.integers(0, 50), st.integers(0, STEPS - 1))
def test_a_step_that_is_long_for_all_is_nobodys_fault(seed: int, step: int) -> None:
    logs = 0.3 * _noise(seed)
    logs[step] += np.log(20.0)
    assert not any(_find(logs))


def test_moments_that_every_rank_has_are_noise() -> None:
    logs = _noise(1)
    for rank in range(RANKS):
        logs[10 + 20 * rank : 13 + 20 * rank, rank] = np.log(2.0)
    assert not any(_find(logs))


def test_short_pauses_of_one_rank_are_judged_together() -> None:
    logs = _noise(2)
    logs[5::20, 3] = np.log(1.5)  # half a second each: too short alone
    found = _find(logs)
    assert [len(groups) for groups in found] == [0, 0, 0, 1, 0, 0]
    assert found[3][0].steps.tolist() == list(range(5, STEPS, 20))


def test_an_unsteady_link_has_no_slow_steps() -> None:
    logs = _noise(3)[:, :1]
    logs[::4] = np.log(30.0)
    assert not any(_find(logs, repeated=False))


def test_times_that_last_are_no_noise_even_if_every_rank_has_one() -> None:
    logs = _noise(4)
    for rank in range(RANKS):
        logs[10 + 20 * rank : 13 + 20 * rank, rank] = np.log(5.0)
    found = _find(logs)
    for rank in range(RANKS):
        (slow,) = found[rank]
        assert slow.steps.tolist() == list(range(10 + 20 * rank, 13 + 20 * rank))


def test_single_long_steps_that_every_rank_has_are_noise() -> None:
    logs = _noise(5)
    for rank in range(RANKS):
        logs[10 + 20 * rank, rank] = np.log(5.0)
    assert not any(_find(logs))
