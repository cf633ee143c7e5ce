"""What a rank's own steps cost, as it tells the others, or a server: timed from its trace, in a
form that travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from laggard.workloads.balancing.allocation import AffineCost
from laggard.workloads.balancing.cost_estimator import CostEstimator
from laggard.workloads.tracing.recorder import WARM_UP_STEPS, Recorder

_PS = 1e12
_PPM = 1e6


@dataclass(frozen=True)
class CostReport:
    """Report of one rank on the cost of its own steps.

    Attributes:
        cost: of a step; None before there was any to tell.
        error: standard error of it, as a part.
        is_outlier: whether the last step departs from the usual, which may be a change of speed.
    """

    cost: AffineCost | None = None
    error: float = 0.0
    is_outlier: bool = False

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> Self:
        """The opposite of `as_numbers`."""
        fixed_s, sample_s, error, is_outlier = numbers
        return cls(AffineCost(fixed_s, sample_s) if sample_s else None, error, bool(is_outlier))

    @property
    def as_numbers(self) -> tuple[float, float, float, float]:
        """Both parts in seconds, the error, 1 for a departure; a cost of nothing where there is
        none.
        """
        fixed_s, sample_s = (
            (0.0, 0.0) if self.cost is None else (self.cost.fixed_s, self.cost.sample_s)
        )
        return fixed_s, sample_s, self.error, float(self.is_outlier)

    @classmethod
    def from_integers(cls, values: Sequence[int]) -> Self:
        """The opposite of `as_integers`."""
        fixed_ps, sample_ps, error_ppm, is_outlier = values
        return cls.from_numbers((fixed_ps / _PS, sample_ps / _PS, error_ppm / _PPM, is_outlier))

    @property
    def as_integers(self) -> tuple[int, int, int, int]:
        """As `as_numbers`, in picoseconds and millionths."""
        fixed_s, sample_s, error, is_outlier = self.as_numbers
        return (
            round(fixed_s * _PS),
            max(round(sample_s * _PS), int(sample_s > 0)),
            round(error * _PPM),
            int(is_outlier),
        )


class CostMonitor:
    """Times one rank's steps by what its trace says of its own work.

    Args:
        window: last steps that it is judged by.
        recorder: the trace; its meter, where there is one by the first step, tells the fixed part
            of a step beforehand.
    """

    def __init__(self, window: int, recorder: Recorder) -> None:
        self._window, self._recorder = window, recorder
        self._estimator: CostEstimator | None = None
        self._own_ns = 0

    def observe(self, step: int, computed: int) -> None:
        """This rank has done its own work of a step since it was told of the last one.

        Args:
            step: its number, from 0.
            computed: samples that it computed, padding included.
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
