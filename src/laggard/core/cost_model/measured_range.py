"""Range of the measured demands, outside of which a prediction is an extrapolation.

A fit of FLOPs and tensors that saw only models with the same FLOPs per tensor cannot know what
either of them costs alone. So the range has two kinds of limits: the least and the greatest
measured value of every quantity, and of the ratio of every two quantities.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from laggard.core.cost_model.demand import CostTerm, StepDemand

_ROUNDING = 1e-9
_VARYING = tuple(term for term in CostTerm if term is not CostTerm.FIXED)
# The quantity of the fixed term is 1, so a ratio to it is the other quantity itself.
_PAIRS = (*((term, CostTerm.FIXED) for term in _VARYING), *combinations(_VARYING, 2))


@dataclass(frozen=True)
class OutsideMeasured:
    """Quantity of a demand that is outside what was measured.

    Attributes:
        name: name of the quantity, or of the ratio of two.
        value: value of the demand.
        low: least measured value.
        high: greatest measured value.
    """

    name: str
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.name}: {self.value:.3g}, only {self.low:.3g} was measured"
        return f"{self.name}: {self.value:.3g}, measured from {self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class _Limit:
    """Measured range of one quantity, or of its ratio to another."""

    term: CostTerm
    divisor: CostTerm
    low: float
    high: float

    @property
    def name(self) -> str:
        return (
            self.term if self.divisor is CostTerm.FIXED else f"({self.term}) per ({self.divisor})"
        )


@dataclass(frozen=True)
class MeasuredRange:
    """Least and greatest measured value of every quantity, and of the ratio of every two."""

    limits: tuple[_Limit, ...]

    @classmethod
    def of(cls, demands: Sequence[StepDemand]) -> MeasuredRange:
        """Return the range of at least one measured demand."""
        limits = []
        for term, divisor in _PAIRS:
            values = [_divide(demand, term, divisor) for demand in demands]
            known = [value for value in values if value is not None]
            if known:
                limits.append(_Limit(term, divisor, min(known), max(known)))
        return cls(tuple(limits))

    def find_outside(self, demand: StepDemand) -> Iterator[OutsideMeasured]:
        """Yield every quantity and ratio of a demand that is outside the range."""
        for limit in self.limits:
            value = _divide(demand, limit.term, limit.divisor)
            if value is not None and not (
                limit.low * (1 - _ROUNDING) <= value <= limit.high * (1 + _ROUNDING)
            ):
                yield OutsideMeasured(limit.name, value, limit.low, limit.high)


def _divide(demand: StepDemand, term: CostTerm, divisor: CostTerm) -> float | None:
    """Return the ratio of two quantities; None if the divisor is zero, so that there is none."""
    return (
        demand.quantity(term) / demand.quantity(divisor) if demand.quantity(divisor) > 0 else None
    )
