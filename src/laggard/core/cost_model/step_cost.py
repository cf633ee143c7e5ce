"""Seconds of a step as predicted by a fitted cost model, with an interval.

The interval is that of the jackknife+ (R. F. Barber, E. J. Candès, A. Ramdas, R. J. Tibshirani,
"Predictive inference with the jackknife+", Annals of Statistics 49(1), 2021), on the logarithm of
the seconds. The fit is repeated without each measured model in turn. Every such fit predicts the
new step and is wrong about it by the factor by which it was wrong about the model that it had not
seen. No distribution of errors is assumed, only that the new model is like the measured ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import CostTerm, StepDemand
from laggard.core.cost_model.measured_range import MeasuredRange, OutsideMeasured
from laggard.core.errors import InputError
from laggard.core.text.text_format import format_percent

COVERAGE = 0.9
"""Usual share of new models whose seconds are inside the interval."""


@dataclass(frozen=True)
class StepPrediction:
    """Predicted seconds of a step.

    Attributes:
        parts: seconds of each term.
        low_s: lower end of the interval.
        high_s: upper end of the interval; infinite if too few models were measured for any.
        coverage: share of models like the measured ones whose seconds are inside the interval. It
            is less than requested if fewer models were measured than the request needs.
        outside: quantities of the step that are outside what was measured; the interval does not
            hold for such a step.
    """

    parts: Mapping[CostTerm, float]
    low_s: float
    high_s: float
    coverage: float
    outside: tuple[OutsideMeasured, ...] = ()

    @property
    def seconds(self) -> float:
        """Return the predicted seconds of the whole step."""
        return math.fsum(self.parts.values())

    @property
    def is_extrapolated(self) -> bool:
        """Return whether the step is outside what was measured."""
        return bool(self.outside)

    def __str__(self) -> str:
        interval = (
            f"{format_percent(self.coverage)} interval {self.low_s:.3g} to {self.high_s:.3g} s"
            if math.isfinite(self.high_s)
            else "no interval, because too few models were measured"
        )
        reasons = "; ".join(map(str, self.outside))
        mark = f" — extrapolated: {reasons}" if reasons else ""
        return f"{self.seconds:.3g} s ({interval}){mark}"


@dataclass(frozen=True)
class LeftOutFit:
    """Fit without one measured model.

    Attributes:
        coefficients: coefficient of every term.
        log_error: largest absolute logarithm of measured by predicted seconds of that model.
    """

    coefficients: tuple[float, ...]
    log_error: float


@dataclass(frozen=True)
class StepCostModel:
    """Fitted formula of one device class.

    Attributes:
        terms: terms of the formula.
        coefficients: coefficient of every term, at least zero: seconds, seconds per operation,
            seconds per tensor, and two factors without a unit.
        measured: range of the demands that the formula was fitted to.
        left_out: one fit per measured model; empty if there are too few models to leave one out.
    """

    terms: tuple[CostTerm, ...]
    coefficients: tuple[float, ...]
    measured: MeasuredRange
    left_out: tuple[LeftOutFit, ...] = ()

    def __post_init__(self) -> None:
        values = (*self.coefficients, *(c for fit in self.left_out for c in fit.coefficients))
        if len(self.coefficients) != len(self.terms) or not all(
            math.isfinite(value) and value >= 0 for value in values
        ):
            raise InputError(
                f"the coefficients {self.coefficients} of the terms {', '.join(self.terms)} must be"
                " one finite number of at least 0 per term — fit the cost model again"
            )

    def predict(self, demand: StepDemand, coverage: float = COVERAGE) -> StepPrediction:
        """Predict the seconds of a step.

        Args:
            demand: what the step demands.
            coverage: share of new models whose seconds the interval shall include.

        Returns:
            The seconds with an interval, marked if the step is outside what was measured.

        Raises:
            InputError: the coverage is not between 0 and 1, or the step communicates and this
                model was fitted without communication.
        """
        if not 0 < coverage < 1:
            raise InputError(
                f"coverage is {coverage} and must be between 0 and 1 — give a share such as 0.9"
            )
        self._require_known_terms(demand)
        quantities = demand.quantities(self.terms)
        parts = dict(zip(self.terms, (quantities * self.coefficients).tolist(), strict=True))
        low_s, high_s, attained = self._compute_interval(quantities, coverage)
        return StepPrediction(
            parts, low_s, high_s, attained, tuple(self.measured.find_outside(demand))
        )

    def _require_known_terms(self, demand: StepDemand) -> None:
        for term in (CostTerm.TRANSFER, CostTerm.LATENCY):
            if term not in self.terms and demand.quantity(term) > 0:
                raise InputError(
                    f"the step has {demand.quantity(term):.3g} s of {term}, but the cost model has"
                    f" only the terms {', '.join(self.terms)} — fit it to steps that communicate,"
                    " or leave out the transfer"
                )

    def _compute_interval(
        self, quantities: FloatArray, coverage: float
    ) -> tuple[float, float, float]:
        """Return the ends of the interval and its coverage."""
        count = len(self.left_out)
        if not count:
            return 0.0, math.inf, coverage
        # Rank of the order statistic among the fits; the widest interval is between the extremes.
        rank = min(math.ceil(coverage * (count + 1) - 1e-9), count)
        predicted = np.array([fit.coefficients for fit in self.left_out]) @ quantities
        factors = np.exp(np.array([fit.log_error for fit in self.left_out]))
        low = np.sort(predicted / factors)[count - rank]
        # A fit that expected no time at all was infinitely wrong, also where it expects none again.
        highs = np.full(count, np.inf)
        np.multiply(predicted, factors, out=highs, where=np.isfinite(factors))
        high = np.sort(highs)[rank - 1]
        return float(low), float(high), min(coverage, count / (count + 1))
