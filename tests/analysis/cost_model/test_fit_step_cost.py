"""Fit of the cost model to generated measurements whose coefficients are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.analysis.cost_model.fit_step_cost import (
    StepMeasurement,
    choose_terms,
    fit_step_cost,
)
from laggard.core.cost_model.demand import (
    COMPUTE_TERMS,
    CostTerm,
    StepDemand,
    TransferDemand,
)
from laggard.core.cost_model.measured_range import MeasuredRange
from laggard.core.cost_model.step_cost import StepCostModel
from laggard.core.errors import InputError

ALL_TERMS = tuple(CostTerm)
TRUTH = (0.02, 6e-11, 9e-4)


def draw_demand(random: np.random.Generator, *, communicates: bool = False) -> StepDemand:
    transfer = TransferDemand(
        10 ** random.uniform(5, 8),
        10 ** random.uniform(1, 3),
        random.uniform(0.1, 50),
        int(random.integers(1, 20)),
    )
    flops, tensors = 10 ** random.uniform(8.5, 10.5), int(random.integers(20, 400))
    return StepDemand(flops, tensors, transfer if communicates else None)


def measure(
    demands: Sequence[StepDemand],
    coefficients: tuple[float, ...] = TRUTH,
    noise: Sequence[float] | None = None,
) -> list[StepMeasurement]:
    """One model a demand, with the seconds of known coefficients times noise."""
    terms = ALL_TERMS[: len(coefficients)]
    truth = StepCostModel(terms, coefficients, MeasuredRange.of(demands))
    return [
        StepMeasurement(
            f"model {i}",
            demand,
            truth.predict(demand).seconds * (1.0 if noise is None else noise[i]),
        )
        for i, demand in enumerate(demands)
    ]


SEEDS = st.integers(0, 2**32 - 1)
COEFFICIENTS = st.tuples(
    st.floats(1e-3, 0.1),
    st.floats(1e-12, 1e-9),
    st.floats(1e-5, 1e-2),
    st.floats(0.5, 3.0),
    st.floats(0.5, 3.0),
)


@given(seed=SEEDS, truth=COEFFICIENTS, count=st.sampled_from([3, 5]))
def test_exact_measurements_give_their_coefficients(
    seed: int, truth: tuple[float, ...], count: int
) -> None:
    random = np.random.default_rng(seed)
    demands = [draw_demand(random, communicates=count == 5) for _ in range(25)]
    fitted = fit_step_cost(measure(demands, truth[:count]), ALL_TERMS[:count])
    assert fitted.coefficients == pytest.approx(truth[:count], rel=1e-6)
    for step in measure([draw_demand(random, communicates=count == 5)], truth[:count]):
        answer = fitted.predict(step.demand)
        assert answer.seconds == pytest.approx(step.seconds, rel=1e-6)
        assert answer.low_s <= step.seconds * (1 + 1e-6)
        assert answer.high_s >= step.seconds * (1 - 1e-6)


@given(
    seed=SEEDS,
    seconds=st.lists(st.floats(1e-4, 1e4), min_size=8, max_size=8),
)
def test_any_measurements_give_the_best_coefficients_of_at_least_zero(
    seed: int, seconds: list[float]
) -> None:
    """The conditions of Karush, Kuhn and Tucker, which only the optimum fulfills."""
    random = np.random.default_rng(seed)
    steps = [
        StepMeasurement(f"model {i}", draw_demand(random), value) for i, value in enumerate(seconds)
    ]
    fitted = np.array(fit_step_cost(steps).coefficients)
    assert (fitted >= 0).all()
    rows = np.array([step.demand.quantities(COMPUTE_TERMS) / step.seconds for step in steps])
    rows /= (scale := np.linalg.norm(rows, axis=0))
    gradient = rows.T @ (rows @ (fitted * scale) - 1.0)
    assert (gradient >= -1e-6).all()
    assert np.abs(gradient[fitted > 0]).max(initial=0.0) < 1e-6


@given(seed=SEEDS, flops_unit=st.sampled_from([1e-9, 1e3]), time_unit=st.sampled_from([1e-3, 60.0]))
def test_units_change_nothing(seed: int, flops_unit: float, time_unit: float) -> None:
    random = np.random.default_rng(seed)
    noise = np.exp(random.normal(0, 0.1, 12)).tolist()
    steps = measure([draw_demand(random) for _ in range(12)], noise=noise)
    scaled = [
        StepMeasurement(
            step.model,
            replace(step.demand, flops=step.demand.flops * flops_unit),
            step.seconds * time_unit,
        )
        for step in steps
    ]
    new = draw_demand(random)
    ours = fit_step_cost(steps).predict(new)
    theirs = fit_step_cost(scaled).predict(replace(new, flops=new.flops * flops_unit))
    for one, other in (
        (ours.seconds, theirs.seconds),
        (ours.low_s, theirs.low_s),
        (ours.high_s, theirs.high_s),
    ):
        assert one * time_unit == pytest.approx(other, rel=1e-6)
    assert len(ours.outside) == len(theirs.outside)


def test_order_and_repeats_of_a_measurement_change_nothing() -> None:
    random = np.random.default_rng(5)
    noise = np.exp(random.normal(0, 0.1, 10)).tolist()
    steps = measure([draw_demand(random) for _ in range(10)], noise=noise)
    once = fit_step_cost(steps)
    repeated = fit_step_cost([*steps[::-1], *[steps[0]] * 20])
    assert repeated.coefficients == pytest.approx(once.coefficients)
    assert len(repeated.left_out) == len(once.left_out) == 10


def test_every_model_has_the_same_weight() -> None:
    """A model of many batch sizes, all measured too slow, does not outweigh the others."""
    few = measure([StepDemand(1e9, 100), StepDemand(2e9, 100)], (0.0, 1e-10))
    many = [
        StepMeasurement("one", StepDemand(1e9 + i, 100), 0.2 * (1 + i * 1e-9)) for i in range(50)
    ]
    weighted = fit_step_cost([*few, *many], (CostTerm.FLOPS,))
    single = fit_step_cost([*few, many[0]], (CostTerm.FLOPS,))
    assert weighted.coefficients == pytest.approx(single.coefficients, rel=1e-6)


def test_intervals_cover_new_models_as_often_as_they_say() -> None:
    """400 draws of 19 models with errors of 15 %, and one more model each time."""
    random = np.random.default_rng(1)
    trials, covered = 400, 0
    for _ in range(trials):
        noise = np.exp(random.normal(0, 0.15, 20)).tolist()
        *seen, new = measure([draw_demand(random) for _ in range(20)], noise=noise)
        answer = fit_step_cost(seen).predict(new.demand)
        covered += answer.low_s <= new.seconds <= answer.high_s
    # Three standard deviations of 400 draws with a probability of 0.9 are 0.045.
    assert 0.9 - 0.045 < covered / trials < 0.97


def test_models_that_are_alike_do_not_extrapolate_to_another_family() -> None:
    """With 1e7 FLOPs per tensor in every model, FLOPs and tensors cannot be told apart."""
    family = [StepDemand(1e7 * tensors, tensors) for tensors in (50, 60, 80, 100, 150, 200)]
    fitted = fit_step_cost(measure(family))
    assert not fitted.predict(StepDemand(1.2e9, 120)).is_extrapolated
    (outside,) = fitted.predict(StepDemand(1.9e9, 60)).outside
    assert outside.name == "(FLOPs) per (tensors)"


def test_a_model_is_left_out_with_all_its_batch_sizes() -> None:
    demands = [StepDemand(flops, 50 + i) for i, flops in enumerate((1e9, 2e9, 4e9, 8e9))]
    steps = measure(demands)
    steps += [replace(step, demand=StepDemand(step.demand.flops * 2, 77)) for step in steps]
    assert len(fit_step_cost(steps, (CostTerm.FIXED, CostTerm.FLOPS)).left_out) == 4


def test_too_few_models_to_leave_one_out_give_no_interval() -> None:
    fitted = fit_step_cost(measure([StepDemand(1e9, 10), StepDemand(2e9, 50), StepDemand(3e9, 20)]))
    assert fitted.left_out == ()
    assert fitted.predict(StepDemand(2e9, 20)).high_s == math.inf


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_impossible_times_are_refused(seconds: float) -> None:
    with pytest.raises(InputError, match=r"step time of cnn in seconds is .* greater than 0"):
        StepMeasurement("cnn", StepDemand(1e9, 10), seconds)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_measurements_than_coefficients_are_refused(count: int) -> None:
    steps = measure([StepDemand(1e9 * (i + 1), 10 * (i + 1)) for i in range(count)])
    with pytest.raises(InputError, match=rf"3 coefficients need at least 3 .* {count} were"):
        fit_step_cost(steps * 5)


def test_a_term_that_was_never_measured_is_refused() -> None:
    steps = measure([StepDemand(1e9 * (i + 1), 10 + i) for i in range(9)])
    with pytest.raises(InputError, match=r"bytes / rate is 0 in all measured steps"):
        fit_step_cost(steps, ALL_TERMS)
    with pytest.raises(InputError, match="at least 1 different steps"):
        fit_step_cost(steps, ())


@pytest.mark.parametrize(
    ("models", "batches", "terms"),
    [
        (0, 0, ()),
        (1, 1, (CostTerm.FLOPS,)),
        (1, 4, (CostTerm.FIXED, CostTerm.FLOPS)),
        (2, 1, (CostTerm.FLOPS,)),
        (3, 1, (CostTerm.FIXED, CostTerm.FLOPS)),
        (4, 1, COMPUTE_TERMS),
        (9, 3, COMPUTE_TERMS),
        (2, 3, COMPUTE_TERMS),
    ],
)
def test_terms_are_those_that_the_measurements_determine(
    models: int, batches: int, terms: tuple[CostTerm, ...]
) -> None:
    steps = [
        StepMeasurement(f"model {m}", StepDemand(1e9 * (m + 1) * (b + 1), 10 * (m + 1)), 0.1)
        for m in range(models)
        for b in range(batches)
    ]
    assert choose_terms(steps) == terms
