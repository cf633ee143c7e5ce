"""Cost model: the formula, its interval, its marks, and quantities that are refused."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.demand import (
    COMPUTE_TERMS,
    CostTerm,
    ModelDemand,
    StepDemand,
    TransferDemand,
)
from laggard.core.cost_model.measured_range import MeasuredRange
from laggard.core.cost_model.step_cost import LeftOutFit, StepCostModel
from laggard.core.errors import InputError

ALL_TERMS = tuple(CostTerm)
SMALL, LARGE = StepDemand(1e9, 50), StepDemand(9e9, 300)
MIDDLE = StepDemand(3e9, 150)
QUANTITY = st.floats(1e-3, 1e12)


def model(
    *left_out: LeftOutFit, terms: tuple[CostTerm, ...] = COMPUTE_TERMS, each: float = 1e-3
) -> StepCostModel:
    return StepCostModel(
        terms, (each,) * len(terms), MeasuredRange.of([SMALL, MIDDLE, LARGE]), left_out
    )


def test_the_formula_by_hand() -> None:
    """1 MB at 100 Mbit/s is 80 ms on the wire, and four rounds of 5 ms are 20 ms."""
    demand = StepDemand(2e9, 60, TransferDemand(1e6, 100.0, 5.0, 4))
    costs = StepCostModel(ALL_TERMS, (0.003, 1e-11, 1e-4, 1.1, 2.0), MeasuredRange.of([demand]))
    predicted = costs.predict(demand)
    assert dict(predicted.parts) == pytest.approx(
        {
            CostTerm.FIXED: 0.003,
            CostTerm.FLOPS: 0.020,
            CostTerm.TENSORS: 0.006,
            CostTerm.TRANSFER: 0.088,
            CostTerm.LATENCY: 0.040,
        }
    )
    assert predicted.seconds == pytest.approx(0.157)


def test_a_model_demands_operations_for_every_sample_and_its_tensors_once() -> None:
    demand = ModelDemand(5e6, 8, 400)
    assert demand.step(32) == StepDemand(1.6e8, 8)
    assert demand.step(0).flops == 0


@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "make",
    [
        lambda value: StepDemand(value, 1),
        lambda value: StepDemand(1, value),
        lambda value: TransferDemand(value, 1.0),
        lambda value: TransferDemand(1.0, value),
        lambda value: TransferDemand(1.0, 1.0, latency_ms=value),
        lambda value: TransferDemand(1.0, 1.0, rounds=value),
        lambda value: ModelDemand(value, 1, 1),
        lambda value: ModelDemand(1, value, 1),
        lambda value: ModelDemand(1, 1, value),
        lambda value: ModelDemand(1, 1, 1).step(value),
        lambda value: StepCostModel((CostTerm.FIXED,), (value,), MeasuredRange.of([SMALL])),
        lambda value: model().predict(MIDDLE, value),
    ],
)
def test_impossible_quantities_are_refused(make: Callable[[float], object], wrong: float) -> None:
    with pytest.raises(InputError, match=rf"{wrong}.* must be .* — "):
        make(wrong)


def test_a_rate_of_zero_is_refused() -> None:
    with pytest.raises(InputError, match=r"rate_mbps is 0.* greater than 0 — give the rate"):
        TransferDemand(1e6, 0.0)


@pytest.mark.parametrize("coverage", [0.0, 1.0, 90.0])
def test_a_coverage_is_between_zero_and_one(coverage: float) -> None:
    with pytest.raises(InputError, match=r"between 0 and 1"):
        model().predict(MIDDLE, coverage)


def test_a_model_without_communication_predicts_none() -> None:
    with pytest.raises(InputError, match=r"bytes / rate, but the cost model has only the terms"):
        model().predict(StepDemand(3e9, 150, TransferDemand(1e6, 100.0)))
    nothing_sent = StepDemand(3e9, 150, TransferDemand(0.0, 100.0))
    assert model().predict(nothing_sent).seconds == model().predict(MIDDLE).seconds


@given(
    predicted=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=30),
    errors=st.lists(st.floats(0, 2), min_size=30, max_size=30),
    coverage=st.floats(0.01, 0.99),
)
def test_the_interval_is_that_of_the_jackknife_plus(
    predicted: list[float], errors: list[float], coverage: float
) -> None:
    """The definition of Barber et al., section 1, with the k-th smallest of n values."""
    count = len(predicted)
    left_out = [LeftOutFit((a,), r) for a, r in zip(predicted, errors, strict=False)]
    costs = model(*left_out, terms=(CostTerm.FIXED,))
    answer = costs.predict(MIDDLE, coverage)
    upper = sorted(a * math.exp(r) for a, r in zip(predicted, errors, strict=False))
    lower = sorted(a / math.exp(r) for a, r in zip(predicted, errors, strict=False))
    k = math.ceil(coverage * (count + 1) - 1e-9)
    if k > count:
        assert answer.coverage == count / (count + 1) < coverage
        k = count
    else:
        assert answer.coverage == coverage
    assert answer.high_s == pytest.approx(upper[k - 1])
    assert answer.low_s == pytest.approx(lower[count - k])


def test_more_coverage_gives_a_wider_interval() -> None:
    costs = model(*(LeftOutFit((1e-3 * i,) * 3, 0.1 * i) for i in range(1, 20)))
    narrow, wide = (costs.predict(MIDDLE, coverage) for coverage in (0.5, 0.9))
    assert wide.low_s <= narrow.low_s <= narrow.high_s <= wide.high_s


def test_without_left_out_models_there_is_no_interval_and_the_text_says_so() -> None:
    answer = model().predict(MIDDLE)
    assert (answer.low_s, answer.high_s) == (0.0, math.inf)
    assert "no interval, because too few models were measured" in str(answer)


def test_a_fit_that_expected_no_time_has_no_upper_end() -> None:
    costs = model(LeftOutFit((0.0,), math.inf), terms=(CostTerm.FIXED,))
    assert costs.predict(MIDDLE).high_s == math.inf
    assert costs.predict(MIDDLE).low_s == 0.0


@pytest.mark.parametrize(
    ("demand", "names"),
    [
        (MIDDLE, ()),
        (SMALL, ()),
        (LARGE, ()),
        (StepDemand(5e9, 200), ()),
        (StepDemand(1e12, 150), ("FLOPs", "(FLOPs) per (tensors)")),
        (StepDemand(1e8, 150), ("FLOPs", "(FLOPs) per (tensors)")),
        (StepDemand(1e9, 5), ("tensors", "(FLOPs) per (tensors)")),
        (StepDemand(8e9, 60), ("(FLOPs) per (tensors)",)),
        (StepDemand(0, 0), ("FLOPs", "tensors")),
    ],
)
def test_what_was_not_measured_is_marked(demand: StepDemand, names: tuple[str, ...]) -> None:
    """Also a step of usual FLOPs and usual tensors that no measured model has together."""
    answer = model().predict(demand)
    assert tuple(each.name for each in answer.outside) == names
    assert answer.is_extrapolated == bool(names)
    assert ("extrapolated" in str(answer)) == bool(names)
    assert all(name in str(answer) for name in names)


def test_a_transfer_that_was_not_measured_is_marked() -> None:
    costs = model(terms=ALL_TERMS)
    (first, *_) = costs.predict(StepDemand(3e9, 150, TransferDemand(1e6, 80.0))).outside
    assert str(first) == "bytes / rate: 0.1, only 0 was measured"


@given(
    demands=st.lists(
        st.builds(
            StepDemand,
            QUANTITY,
            QUANTITY,
            st.none() | st.builds(TransferDemand, QUANTITY, QUANTITY, QUANTITY, QUANTITY),
        ),
        min_size=1,
        max_size=6,
    ),
    beyond=st.floats(1.01, 1e3),
)
def test_measured_steps_are_inside_and_larger_ones_outside(
    demands: list[StepDemand], beyond: float
) -> None:
    measured = MeasuredRange.of(demands)
    assert [list(measured.find_outside(demand)) for demand in demands] == [[]] * len(demands)
    most = max(demand.flops for demand in demands)
    assert any(each.name == "FLOPs" for each in measured.find_outside(StepDemand(most * beyond, 1)))


def test_the_core_imports_no_heavy_package() -> None:
    code = "import sys, laggard.core.cost_model.step_cost; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert not {"torch", "scipy", "pandas", "pyarrow"} & set(done.stdout.split())
