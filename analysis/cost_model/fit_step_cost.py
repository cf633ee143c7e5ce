"""Fit of a device class's cost model to measured steps.

Coefficients are the non-negative least squares of the relative error, because the seconds of small
and large models differ by orders of magnitude. All models have the same weight, whatever the
number of their measurements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import (
    COMPUTE_TERMS,
    CostTerm,
    StepDemand,
    require_quantity,
)
from laggard.core.cost_model.measured_range import MeasuredRange
from laggard.core.cost_model.step_cost import LeftOutFit, StepCostModel
from laggard.core.errors import InputError

_BY_IMPORTANCE = (CostTerm.FLOPS, CostTerm.FIXED, CostTerm.TENSORS)


@dataclass(frozen=True)
class StepMeasurement:
    """Measured step of one model on one device class.

    Attributes:
        model: name of the model; measurements of one model are left out together.
        demand: what the step demands.
        seconds: measured seconds of the step.
    """

    model: str
    demand: StepDemand
    seconds: float

    def __post_init__(self) -> None:
        require_quantity(
            f"the measured step time of {self.model} in seconds",
            self.seconds,
            "leave the measurement out",
            positive=True,
        )


def choose_terms(measurements: Sequence[StepMeasurement]) -> tuple[CostTerm, ...]:
    """Return the terms of computing that the measurements determine.

    With several models they must be determined without any one of them too, so that there is an
    interval. One model of several batch sizes determines the fixed term and FLOPs.
    """
    demands = {(each.model, each.demand) for each in measurements}
    models = {model for model, _ in demands}
    if len(models) == 1:
        count = min(len(demands), 2)
    else:
        left = (len({step for name, step in demands if name != model}) for model in models)
        count = min(left, default=0)
    return tuple(sorted(_BY_IMPORTANCE[:count], key=list(CostTerm).index))


def fit_step_cost(
    measurements: Sequence[StepMeasurement], terms: Sequence[CostTerm] = COMPUTE_TERMS
) -> StepCostModel:
    """Fit the cost model of one device class.

    Args:
        measurements: measured steps of that class. Several of the same model and demand count as
            one, with their mean.
        terms: terms of the formula.

    Returns:
        The model, with an interval if there are enough models to leave one out.

    Raises:
        InputError: there are fewer different steps than terms, or a term is zero in all of them.

    Examples:
        >>> from laggard.analysis.cost_model.fit_step_cost import StepMeasurement
        >>> from laggard.core.cost_model.demand import StepDemand
        >>> steps = [StepDemand(flops, tensors) for flops in (1e9, 4e9) for tensors in (50, 200)]
        >>> measured = [
        ...     StepMeasurement(f"model {number}", step, 0.01 + 5e-11 * step.flops)
        ...     for number, step in enumerate(steps)
        ... ]
        >>> fitted = fit_step_cost(measured)
        >>> round(fitted.predict(StepDemand(flops=2e9, tensors=100)).seconds, 6)
        0.11
        >>> fitted.predict(StepDemand(flops=2e12, tensors=100)).is_extrapolated
        True
    """
    steps = _merge_repeats(measurements)
    _require_determined(steps, terms)
    return StepCostModel(
        tuple(terms),
        tuple(_solve(steps, terms).tolist()),
        MeasuredRange.of([step.demand for step in steps]),
        _leave_models_out(steps, terms),
    )


def _leave_models_out(
    steps: Sequence[StepMeasurement], terms: Sequence[CostTerm]
) -> tuple[LeftOutFit, ...]:
    """Return a fit without each model; none if one of them would leave too few steps."""
    fits = []
    for model in dict.fromkeys(step.model for step in steps):
        kept = [step for step in steps if step.model != model]
        if len({step.demand for step in kept}) < len(terms):
            return ()
        coefficients = _solve(kept, terms)
        errors = [
            _compute_log_error(step, terms, coefficients) for step in steps if step.model == model
        ]
        fits.append(LeftOutFit(tuple(coefficients.tolist()), max(errors)))
    return tuple(fits)


def _merge_repeats(measurements: Sequence[StepMeasurement]) -> list[StepMeasurement]:
    """Return one measurement per model and demand, with the mean of the seconds."""
    seconds: dict[tuple[str, StepDemand], list[float]] = {}
    for each in measurements:
        seconds.setdefault((each.model, each.demand), []).append(each.seconds)
    return [
        StepMeasurement(model, demand, math.fsum(values) / len(values))
        for (model, demand), values in seconds.items()
    ]


def _require_determined(steps: Sequence[StepMeasurement], terms: Sequence[CostTerm]) -> None:
    demands = {step.demand for step in steps}
    if not terms or len(demands) < len(terms):
        raise InputError(
            f"{len(terms)} coefficients need at least {max(len(terms), 1)} different steps, and"
            f" {len(demands)} were measured — measure more models or batch sizes, or fit fewer"
            " terms"
        )
    for term in terms:
        if not any(demand.quantity(term) for demand in demands):
            raise InputError(
                f"{term} is 0 in all measured steps, so its coefficient is unknown — measure a"
                " step that has it, or fit without this term"
            )


def _solve(steps: Sequence[StepMeasurement], terms: Sequence[CostTerm]) -> FloatArray:
    """Return the coefficients with the least sum of squared relative errors, [terms]."""
    from scipy.optimize import nnls

    per_model: dict[str, int] = {}
    for step in steps:
        per_model[step.model] = per_model.get(step.model, 0) + 1
    weight = np.array([per_model[step.model] ** -0.5 for step in steps])
    seconds = np.array([step.seconds for step in steps])
    rows = np.array([step.demand.quantities(terms) for step in steps]) / seconds[:, None]
    # Quantities differ by many orders of magnitude; columns of one size keep the solution exact.
    scale = np.linalg.norm(rows, axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(rows / scale * weight[:, None], weight)
    coefficients: FloatArray = solution / scale
    return coefficients


def _compute_log_error(
    step: StepMeasurement, terms: Sequence[CostTerm], coefficients: FloatArray
) -> float:
    predicted = float(step.demand.quantities(terms) @ coefficients)
    return abs(math.log(step.seconds / predicted)) if predicted > 0 else math.inf
