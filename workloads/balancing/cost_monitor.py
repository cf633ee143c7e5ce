"""Monitor of a rank's own step costs, and the report that it sends to other ranks or a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from laggard.core.span_schema import WARM_UP_STEPS
from laggard.workloads.balancing.allocation import AffineCost
from laggard.workloads.balancing.cost_estimator import CostEstimator
from laggard.workloads.tracing.recorder import Recorder

_PS = 1e12
_PPM = 1e6


@dataclass(frozen=True)
class CostReport:
    """Report of one rank on the cost of its own steps.

    Attributes:
        cost: cost of a step; None before there is an estimate.
        error: relative standard error of the cost.
        is_outlier: whether the last step is an outlier, which may be a change of speed.
    """

    cost: AffineCost | None = None
    error: float = 0.0
    is_outlier: bool = False

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        """Build a report from the result of `as_numbers`."""
        fixed_s, sample_s, error, is_outlier = numbers
        return cls(AffineCost(fixed_s, sample_s) if sample_s else None, error, bool(is_outlier))

    @property
    def as_numbers(self) -> tuple[float, float, float, float]:
        """Report as fixed and per-sample seconds, error, and 1 for an outlier.

        Both costs are 0 if there is no estimate.
        """
        fixed_s, sample_s = (
            (0.0, 0.0) if self.cost is None else (self.cost.fixed_s, self.cost.sample_s)
        )
        return fixed_s, sample_s, self.error, float(self.is_outlier)

    @classmethod
    def from_integers(cls, values: Sequence[int]) -> Self:
        """Build a report from the result of `as_integers`."""
        fixed_ps, sample_ps, error_ppm, is_outlier = values
        return cls.from_numbers((fixed_ps / _PS, sample_ps / _PS, error_ppm / _PPM, is_outlier))

    @property
    def as_integers(self) -> tuple[int, int, int, int]:
        """Report as integers: the values of `as_numbers` in picoseconds and millionths."""
        fixed_s, sample_s, error, is_outlier = self.as_numbers
        return (
            round(fixed_s * _PS),
            # Rounding must not make a positive cost 0, which means that there is no estimate.
            max(round(sample_s * _PS), int(sample_s > 0)),
            round(error * _PPM),
            int(is_outlier),
        )


class CostMonitor:
    """Monitor of one rank's step costs, measured by its own work in the trace.

    Args:
        window: number of last steps that the estimate uses.
        recorder: trace of the rank; if it has a meter at the first step, that gives the fixed part
            of a step beforehand.
    """

    def __init__(self, window: int, recorder: Recorder) -> None:
        self._window, self._recorder = window, recorder
        self._estimator: CostEstimator | None = None
        self._own_ns = 0

    def observe(self, step: int, computed: int) -> None:
        """Add the rank's own work since the last call as the cost of a step.

        Args:
            step: number of the step, from 0.
            computed: number of samples computed, including padding.
        """
        own_ns, self._own_ns = self._own_ns, self._recorder.own_ns
        if self._estimator is None:
            meter = self._recorder.meter
            self._estimator = CostEstimator(
                self._window, meter.full_speed.fixed_samples if meter is not None else 0.0
            )
        elif step >= WARM_UP_STEPS:
            self._estimator.observe(computed, (self._own_ns - own_ns) / 1e9)

    @property
    def report(self) -> CostReport:
        """Current report of this rank."""
        cost = None if self._estimator is None else self._estimator.estimate()
        if self._estimator is None or cost is None:
            return CostReport()
        return CostReport(cost, self._estimator.error, self._estimator.is_outlier)
