"""Lives of revocable machines: survival and rate of revocation, from observed lives.

A life that was observed only in part, because the machine still ran when it was given back, is
censored. The estimate is that of Kaplan and Meier (J. Am. Stat. Assoc. 53, 1958). After the longest
observed life nothing is known. If machines survive until then, their rate of revocation stays at
its mean: revocations per observed time.
"""

from __future__ import annotations

import bisect
import math
import random
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from laggard.core.errors import InputError

# A scenario draws lives before the sandbox is entered, which must not find numpy's threads.
if TYPE_CHECKING:
    from laggard.core.cost_model.arrays import FloatArray


@dataclass(frozen=True)
class Life:
    """Observed life of a machine.

    Attributes:
        seconds: time from its start to its revocation, or to the end of the observation.
        censored: whether the machine was not revoked.
    """

    seconds: float
    censored: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise InputError(
                f"a life of {self.seconds} s is impossible — give a positive and finite time"
            )


@dataclass(frozen=True)
class Lifetimes:
    """Distribution of the lives of machines.

    Attributes:
        lives: observed lives, of which at least one ended by a revocation.

    Raises:
        InputError: no observed life ended by a revocation.

    Examples:
        >>> from laggard.core.revocation.lifetimes import Life
        >>> hours = Lifetimes((Life(3600.0), Life(7200.0), Life(7200.0, censored=True)))
        >>> round(float(hours.survival(3600.0)), 3), hours.mean_rate_per_s == 2 / 18000
        (0.667, True)
    """

    lives: tuple[Life, ...]

    def __post_init__(self) -> None:
        if all(each.censored for each in self.lives):
            raise InputError(
                f"none of {len(self.lives)} lives ended by a revocation, so nothing is known about"
                " revocations — give lives that did, or predict without lifetimes"
            )

    @cached_property
    def mean_rate_per_s(self) -> float:
        """Return the number of revocations per second of observed life."""
        ended = sum(not each.censored for each in self.lives)
        return ended / math.fsum(each.seconds for each in self.lives)

    @cached_property
    def _steps(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the ages at revocations, ascending, and the survival after each."""
        revoked = Counter(each.seconds for each in self.lives if not each.censored)
        ages = sorted(each.seconds for each in self.lives)
        times, after, survival = sorted(revoked), [], 1.0
        for time_s in times:
            at_risk = len(ages) - bisect.bisect_left(ages, time_s)
            survival *= 1.0 - revoked[time_s] / at_risk
            after.append(survival)
        return tuple(times), tuple(after)

    def survival(self, age_s: FloatArray | float) -> FloatArray:
        """Return the probability that a machine lives longer than an age, in the shape of it."""
        import numpy as np

        times, after = map(np.array, self._steps)
        ages = np.asarray(age_s, dtype=np.float64)
        place = np.searchsorted(times, ages, side="right")
        known = np.where(place > 0, after[np.maximum(place - 1, 0)], 1.0)
        beyond_s = np.maximum(ages - self._longest_s, 0.0)
        survival: FloatArray = known * np.exp(-self.mean_rate_per_s * beyond_s)
        return survival

    @cached_property
    def _longest_s(self) -> float:
        return max(each.seconds for each in self.lives)

    def draw_lives(self, drawn: FloatArray) -> FloatArray:
        """Return lives in seconds, [N].

        Args:
            drawn: random numbers that are uniform in [0, 1), [N].
        """
        import numpy as np

        times, after = map(np.array, self._steps)
        # The life ends at the first age at which the survival is at most the drawn number.
        place = np.searchsorted(-after, -drawn, side="left")
        beyond = np.maximum(drawn, np.finfo(float).tiny) / max(after[-1], np.finfo(float).tiny)
        later_s = self._longest_s - np.log(np.minimum(beyond, 1.0)) / self.mean_rate_per_s
        return np.asarray(
            np.where(place < len(times), times[np.minimum(place, len(times) - 1)], later_s)
        )

    def draw_life(self, rng: random.Random) -> float:
        """Draw one life in seconds."""
        times, after = self._steps
        drawn = rng.random()
        # The life ends at the first age at which the survival is at most the drawn number.
        place = bisect.bisect_left(after, -drawn, key=lambda survival: -survival)
        if place < len(times):
            return times[place]
        return self._longest_s + rng.expovariate(self.mean_rate_per_s)


def compute_revocation_rate(lifetimes: Lifetimes, step_s: float, count: int) -> FloatArray:
    """Return the revocations per second of one machine that is replaced at once, [count].

    It is the density of the renewal process: a replacement begins a new life (D. R. Cox, "Renewal
    Theory", 1962).

    Args:
        lifetimes: lives of machines.
        step_s: seconds between two values.
        count: number of values; the first is that of the first `step_s` seconds.
    """
    import numpy as np

    edges_s: FloatArray = np.arange(count + 1, dtype=np.float64) * step_s
    ending = -np.diff(lifetimes.survival(edges_s))
    renewals = np.zeros(count)
    for place in range(count):
        # Revocations now: first lives that end, and lives that began with an earlier revocation.
        earlier = renewals[:place]
        renewals[place] = ending[place] + float(earlier @ ending[place - 1 :: -1][: len(earlier)])
    return renewals / step_s
