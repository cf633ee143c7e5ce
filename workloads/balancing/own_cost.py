"""What a rank's own steps cost, as it tells the others, or a server: timed from its trace, in a
form that travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from laggard.workloads.balancing.allocation import AffineCost
from laggard.workloads.balancing.capacity import Capacity
from laggard.workloads.tracing.recorder import WARM_UP_STEPS, Recorder

_PS = 1e12
_PPM = 1e6


@dataclass(frozen=True)
class Found:
    """What a rank has found of its own steps.

    Attributes:
        cost: of a step; None before there was any to tell.
        error: standard error of it, as a part.
        departs: whether the last step departs from the usual, which may be a change of speed.
    """

    cost: AffineCost | None = None
    error: float = 0.0
    departs: bool = False

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> Self:
        """The opposite of `numbers`."""
        fixed_s, sample_s, error, departs = numbers
        return cls(AffineCost(fixed_s, sample_s) if sample_s else None, error, bool(departs))

    @property
    def numbers(self) -> tuple[float, float, float, float]:
        """Both parts in seconds, the error, 1 for a departure; a cost of nothing where there is
        none.
        """
        fixed_s, sample_s = (
            (0.0, 0.0) if self.cost is None else (self.cost.fixed_s, self.cost.sample_s)
        )
        return fixed_s, sample_s, self.error, float(self.departs)

    @classmethod
    def of_whole_numbers(cls, values: Sequence[int]) -> Self:
        """The opposite of `whole_numbers`."""
        fixed_ps, sample_ps, error_ppm, departs = values
        return cls.of_numbers((fixed_ps / _PS, sample_ps / _PS, error_ppm / _PPM, departs))

    @property
    def whole_numbers(self) -> tuple[int, int, int, int]:
        """As `numbers`, in picoseconds and millionths."""
        fixed_s, sample_s, error, departs = self.numbers
        return (
            round(fixed_s * _PS),
            max(round(sample_s * _PS), int(sample_s > 0)),
            round(error * _PPM),
            int(departs),
        )


class OwnCost:
    """Times one rank's steps by what its trace says of its own work.

    Args:
        window: last steps that it is judged by.
        recorder: the trace; its meter, where there is one by the first step, tells the fixed part
            of a step beforehand.
    """

    def __init__(self, window: int, recorder: Recorder) -> None:
        self._window, self._recorder = window, recorder
        self._capacity: Capacity | None = None
        self._own_ns = 0

    def observe(self, step: int, computed: int) -> None:
        """This rank has done its own work of a step since it was told of the last one.

        Args:
            step: its number, from 0.
            computed: samples that it computed, padding included.
        """
        own_ns, self._own_ns = self._own_ns, self._recorder.own_ns
        if self._capacity is None:
            meter = self._recorder.meter
            self._capacity = Capacity(
                self._window, meter.full_speed.fixed_samples if meter is not None else 0.0
            )
        elif step >= WARM_UP_STEPS:
            self._capacity.observe(computed, (self._own_ns - own_ns) / 1e9)

    @property
    def found(self) -> Found:
        """What this rank tells now."""
        cost = None if self._capacity is None else self._capacity.estimate()
        if self._capacity is None or cost is None:
            return Found()
        return Found(cost, self._capacity.error, self._capacity.departs)
