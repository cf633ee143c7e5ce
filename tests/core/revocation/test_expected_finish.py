"""Expected ends of trainings on revocable machines, against simulated lives and closed forms."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.core.revocation.expected_finish import (
    RevocableTraining,
    choose_interval,
    expect_finish,
)
from laggard.core.revocation.lifetimes import Life, Lifetimes, compute_revocation_rate

HOUR = 3600.0


def sample_lives(kind: str, count: int = 400) -> Lifetimes:
    """Lives of a known distribution; those beyond a day are censored, as clouds end them."""
    rng = np.random.default_rng(5)
    drawn = {
        "exponential": rng.exponential(12 * HOUR, count),
        "infant": rng.weibull(0.6, count) * 14 * HOUR,
        "ageing": rng.weibull(3.0, count) * 12 * HOUR,
    }[kind]
    return Lifetimes(
        tuple(Life(max(min(each, 24 * HOUR), 1.0), bool(each > 24 * HOUR)) for each in drawn)
    )


def simulate(
    training: RevocableTraining, lifetimes: Lifetimes, interval_s: float, runs: int
) -> tuple[float, float]:
    """Mean end and number of revocations of trainings that are played life by life."""
    rng = random.Random(11)
    ends, revoked = np.zeros(runs), np.zeros(runs)
    for run in range(runs):
        dies = np.array([lifetimes.draw_life(rng) for _ in range(training.machines)])
        now_s, done_s = 0.0, 0.0
        while done_s < training.work_s:
            part_s = min(interval_s, training.work_s - done_s)
            whole_s = part_s + (training.checkpoint_s if part_s == interval_s else 0.0)
            first = int(dies.argmin())
            if dies[first] >= now_s + whole_s:
                now_s, done_s = now_s + whole_s, done_s + part_s
                continue
            # A machine that is revoked during a restart begins the restart again.
            now_s = float(dies[first]) + training.restart_s
            revoked[run] += 1
            dies[first] += lifetimes.draw_life(rng)
            while dies.min() < now_s:
                first = int(dies.argmin())
                now_s = float(dies[first]) + training.restart_s
                revoked[run] += 1
                dies[first] += lifetimes.draw_life(rng)
        ends[run] = now_s
    return float(ends.mean()), float(revoked.mean())


@pytest.mark.parametrize("kind", ["exponential", "infant", "ageing"])
@pytest.mark.parametrize("machines", [1, 4, 16])
@pytest.mark.parametrize("interval_s", [300.0, 1800.0])
def test_the_expected_end_is_that_of_simulated_lives(
    kind: str, machines: int, interval_s: float
) -> None:
    training = RevocableTraining(10 * HOUR, machines, checkpoint_s=20.0, restart_s=180.0)
    lifetimes = sample_lives(kind)
    found = expect_finish(training, lifetimes, interval_s)
    end_s, revoked = simulate(training, lifetimes, interval_s, 1000)
    assert found.finish_s == pytest.approx(end_s, rel=0.05)
    assert found.revocations == pytest.approx(revoked, rel=0.1, abs=0.1)


def test_without_revocations_only_checkpoints_cost() -> None:
    training = RevocableTraining(HOUR, 4, checkpoint_s=30.0, restart_s=60.0)
    found = expect_finish(training, Lifetimes((Life(1e12),)), 300.0)
    assert found.finish_s == pytest.approx(HOUR * 1.1, rel=1e-3)
    assert found.revocations == 0


def test_the_best_interval_is_that_of_young_and_daly() -> None:
    # J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17, 1974.
    rng = np.random.default_rng(3)
    lifetimes = Lifetimes(tuple(Life(float(each)) for each in rng.exponential(100 * HOUR, 4000)))
    training = RevocableTraining(50 * HOUR, 4, checkpoint_s=60.0, restart_s=60.0)
    best = choose_interval(training, lifetimes)
    young_s = math.sqrt(2 * 60.0 / (4 * lifetimes.mean_rate_per_s))
    at_young = expect_finish(training, lifetimes, young_s)
    # The intervals that are tried are 20 % apart.
    assert best.finish_s <= at_young.finish_s * 1.001
    assert best.finish_s == pytest.approx(at_young.finish_s, rel=0.005)


def test_a_training_that_never_ends_is_said_to() -> None:
    training = RevocableTraining(100 * HOUR, 64, checkpoint_s=60.0, restart_s=HOUR)
    lives = Lifetimes((Life(600.0), Life(900.0), Life(700.0)))
    assert expect_finish(training, lives, 20 * HOUR).finish_s == math.inf


def test_more_machines_end_no_earlier() -> None:
    ends = [
        expect_finish(RevocableTraining(HOUR, n, 5.0, 60.0), sample_lives("infant"), 300).finish_s
        for n in (1, 2, 8, 32)
    ]
    assert ends == sorted(ends)


def test_the_survival_is_that_of_kaplan_and_meier() -> None:
    # Freireich et al., Blood 21, 1963: weeks of remission with 6-mercaptopurine.
    weeks = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    lives = Lifetimes(
        tuple(Life(float(each)) for each in weeks)
        + tuple(Life(float(each), censored=True) for each in censored)
    )
    known = {6: 0.857, 7: 0.807, 10: 0.753, 13: 0.690, 16: 0.627, 22: 0.538, 23: 0.448}
    for week, survival in known.items():
        assert float(lives.survival(float(week))) == pytest.approx(survival, abs=0.001)


def test_drawn_lives_survive_as_often_as_observed_ones() -> None:
    lives = sample_lives("infant")
    rng = random.Random(2)
    drawn = np.array([lives.draw_life(rng) for _ in range(20_000)])
    for age in (0.5, 3.0, 12.0, 23.0, 40.0):
        survived = float((drawn > age * HOUR).mean())
        assert survived == pytest.approx(float(lives.survival(age * HOUR)), abs=0.015)


def test_a_machine_that_is_replaced_is_revoked_at_the_mean_rate_in_the_end() -> None:
    # Cox 1962: the density of a renewal process tends to one by the mean life.
    rng = np.random.default_rng(1)
    lives = Lifetimes(tuple(Life(float(each)) for each in rng.uniform(50, 150, 2000)))
    rate = compute_revocation_rate(lives, 1.0, 3000)
    assert rate[-500:].mean() == pytest.approx(0.01, rel=0.02)


@given(st.lists(st.tuples(st.floats(1, 1e6), st.booleans()), min_size=1, max_size=20))
def test_survival_falls_from_one(observed: list[tuple[float, bool]]) -> None:
    if all(censored for _, censored in observed):
        with pytest.raises(InputError, match="ended by a revocation"):
            Lifetimes(tuple(Life(*each) for each in observed))
        return
    lives = Lifetimes(tuple(Life(*each) for each in observed))
    survival = lives.survival(np.linspace(0, 2e6, 200))
    assert survival[0] == 1.0
    assert (np.diff(survival) <= 1e-12).all()
    assert (survival >= 0).all()


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_lives_are_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="life"):
        Life(seconds)
