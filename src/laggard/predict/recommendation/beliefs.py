"""Beliefs about the time that each candidate takes, before and after some were measured.

A belief is a set of drawn worlds. In each, machines are faster or slower than the forecast assumes,
by errors that are normal in the logarithm: one that all machines share, one of each family of
processors, one of each type, and one that grows with the logarithm of the cores. The time follows
from the simulated time at that speed, so a training that waits for its links hardly profits from
faster machines. Two errors of the time itself are added: one that grows with the logarithm of the
number of machines, and one of each candidate.

A measurement of one candidate thus tells much about others. It gives every world a weight, its
likelihood, by which worlds are drawn again (importance resampling; Smith and Gelfand, *Bayesian
Statistics without Tears*, The American Statistician 46, 1992).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray

WORLDS = 4096

_LEAST_WORLDS = 64
"""Number of worlds that must still differ after a measurement."""


@dataclass(frozen=True)
class ErrorSizes:
    """Standard deviations of errors of a forecast, all of logarithms.

    Attributes:
        shared: of the speed of all machines, which are unlike this one.
        family: of the speed of a family of processors.
        instance: of the speed of a type of machine.
        per_core: of the speed, times the logarithm of the cores.
        per_machine: of the time, times the logarithm of the number of machines.
        candidate: of a candidate's time, as `benchmarks/predictions.md` has it.
        measured: of a measurement.
    """

    shared: float = 0.5
    family: float = 0.15
    instance: float = 0.08
    per_core: float = 0.12
    per_machine: float = 0.05
    candidate: float = 0.1
    measured: float = 0.02


@dataclass(frozen=True)
class CandidateTraits:
    """Forecasts of N candidates, and properties that several of them share.

    Attributes:
        speeds: logarithms of the K speeds that were simulated, ascending, [K].
        seconds: logarithms of the simulated seconds of each candidate at these speeds, [N, K].
        own_speeds: logarithm of the speed that the forecast assumes for each candidate, [N].
        families: number of each candidate's family, [N].
        instances: number of each candidate's type of machine, [N].
        cores: cores of each candidate's machines, [N].
        machines: number of machines of each candidate, [N].
    """

    speeds: FloatArray
    seconds: FloatArray
    own_speeds: FloatArray
    families: Sequence[int]
    instances: Sequence[int]
    cores: FloatArray
    machines: FloatArray


@dataclass(frozen=True)
class Beliefs:
    """Drawn worlds, each with a time of every candidate.

    Attributes:
        usual: logarithm of the seconds of each candidate without its own error, [S, N].
        own: own error of each candidate, [S, N].
        sizes: sizes of errors.
        measured: numbers of the candidates that were measured.
    """

    usual: FloatArray
    own: FloatArray
    sizes: ErrorSizes
    measured: tuple[int, ...] = ()

    @classmethod
    def draw(
        cls, traits: CandidateTraits, sizes: ErrorSizes | None = None, seed: int = 1
    ) -> Beliefs:
        """Draw worlds before anything is measured.

        Args:
            traits: forecasts, and what candidates have in common.
            sizes: sizes of the forecasts' errors.
            seed: seed of the draw.
        """
        sizes = sizes or ErrorSizes()
        rng, count = np.random.default_rng(seed), len(traits.own_speeds)
        families, instances = np.asarray(traits.families), np.asarray(traits.instances)

        def draw(size: float, columns: int) -> FloatArray:
            return size * rng.standard_normal((WORLDS, columns))

        speeds = (
            traits.own_speeds
            + draw(sizes.shared, 1)
            + draw(sizes.family, int(families.max()) + 1)[:, families]
            + draw(sizes.instance, int(instances.max()) + 1)[:, instances]
            + draw(sizes.per_core, 1) * _center(traits.cores)
        )
        usual = draw(sizes.per_machine, 1) * _center(traits.machines)
        usual = usual + np.stack(
            [
                np.interp(speeds[:, each], traits.speeds, traits.seconds[each])
                for each in range(count)
            ],
            axis=1,
        )
        return cls(usual, draw(sizes.candidate, count), sizes)

    @property
    def worlds(self) -> FloatArray:
        """Return the logarithms of seconds, [S, N]."""
        return self.usual + self.own

    def with_measurements(self, seconds: Mapping[int, float]) -> Beliefs:
        """Return the worlds after measurements of some candidates, none of which counts already.

        Args:
            seconds: measured time by the candidate's number.
        """
        if not seconds:
            return self
        measured = list(seconds)
        missing = np.log([*seconds.values()]) - self.usual[:, measured]
        kept = _draw_again(_weigh(missing, self.sizes))
        # Errors of candidates that nobody measured do not depend on the world, and stay as drawn.
        own = self.own.copy()
        own[:, self.measured] = self.own[kept][:, self.measured]
        # The rest of the difference is the candidate's own error, but for that of the measurement.
        of_candidate, of_measurement = self.sizes.candidate**2, self.sizes.measured**2
        share = of_candidate / (of_candidate + of_measurement)
        own[:, measured] = share * missing[kept] + np.sqrt(1 - share) * self.own[:, measured]
        return Beliefs(self.usual[kept], own, self.sizes, (*self.measured, *measured))

    def select(self, worlds: int, candidates: Sequence[int]) -> Beliefs:
        """Return some of the worlds, spread evenly, and some of the candidates."""
        every = max(len(self.usual) // worlds, 1)
        measured = (n for n, each in enumerate(candidates) if each in self.measured)
        return Beliefs(
            self.usual[::every, candidates],
            self.own[::every, candidates],
            self.sizes,
            tuple(measured),
        )

    def quantiles_s(self, *shares: float) -> FloatArray:
        """Return quantiles of each candidate's seconds, [len(shares), N]."""
        return np.exp(np.quantile(self.worlds, shares, axis=0))


def _weigh(missing: FloatArray, sizes: ErrorSizes) -> FloatArray:
    """Return the weight of each world.

    Measurements that hardly any world expects are given larger errors, so that not a single world
    decides.

    Args:
        missing: measured less expected logarithm of seconds, [S, measurements].
        sizes: sizes of errors.
    """
    variance = sizes.candidate**2 + sizes.measured**2
    squares = (missing**2).sum(axis=1) / 2
    while True:
        weights: FloatArray = np.exp((squares.min() - squares) / variance)
        weights /= weights.sum()
        if 1 / (weights**2).sum() >= min(_LEAST_WORLDS, len(weights) / 4):
            return weights
        variance *= 1.5


def _draw_again(weights: FloatArray) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """Return the numbers of worlds in proportion to their weights, at even places of their sum."""
    places = (np.arange(len(weights)) + 0.5) / len(weights)
    return np.minimum(np.searchsorted(np.cumsum(weights), places), len(weights) - 1)


def _center(numbers: FloatArray) -> FloatArray:
    """Return logarithms around their mean, so that they add little to the shared error."""
    logs: FloatArray = np.log(numbers)
    centered: FloatArray = logs - logs.mean()
    return centered
