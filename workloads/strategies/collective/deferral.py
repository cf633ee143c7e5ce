"""Deferred averages across tiers: the section `defer`, and what each rank measures for it.

Every rank adds its measurements to the average across tiers itself. So all ranks know those of all
tiers without a further message, and plan the same next average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field

from laggard.core.rules.deferral import DeferralRule, DeferredSynchronization, TierMeasurement
from laggard.workloads.specification.section import NameOrMapping, Section, require_known_name

_NUMBERS = 3


class TaskEnds(Section):
    """Averages across tiers at the ends of the stream's tasks only."""

    name: Literal["task_ends"] = "task_ends"


class AfterBytes(Section):
    """Averages across tiers at the ends of tasks, and after so many bytes of samples."""

    name: Literal["bytes"]
    every_mb: float = Field(
        gt=0,
        le=1e9,
        description=(
            "megabytes of samples, as the model receives them, on which all workers together train"
            " between two averages of all tiers"
        ),
    )


class Drift(Section):
    """Averages across tiers by how far their models have moved away from the last common one.

    Kamp, Boley, Keren, Schuster, Sharfman, *Communication-efficient distributed online prediction
    by dynamic model synchronization*, ECML PKDD 2014, limit this distance too. There a tier speaks
    up when it has reached it; here the distance in one average sets the interval to the next one.
    """

    name: Literal["drift"]
    tolerance: float = Field(
        default=0.05,
        ge=0,
        le=100,
        description=(
            "distance of a tier's model from the last common one, relative to the latter's norm,"
            " above which the tiers average more often; otherwise they average less often"
        ),
    )


class Measured(Section):
    """Averages across tiers by what they cost and what the tiers forget without them."""

    name: Literal["measured"] = "measured"
    overhead: float = Field(
        default=0.5,
        gt=0,
        le=100,
        description="most seconds of exchanges across tiers per second of steps",
    )
    tolerance: float = Field(
        default=0.05,
        ge=0,
        le=100,
        description=(
            "rise of the loss on old samples above which the tiers average more often; otherwise"
            " they average less often"
        ),
    )


DEFERRAL_NAMES = ("task_ends", "bytes", "drift", "measured")


Deferral = TaskEnds | AfterBytes | Drift | Measured
DeferralField = Annotated[
    Annotated[Deferral, Discriminator("name")] | None,
    BeforeValidator(
        partial(require_known_name, names=DEFERRAL_NAMES, rule="averages are not deferred so")
    ),
    NameOrMapping(*DEFERRAL_NAMES),
]


def plan_deferral(
    deferral: Deferral, task_ends: Sequence[int], last_step: int | None
) -> DeferredSynchronization:
    """Return the synchronization that a deferral begins with.

    Args:
        deferral: section `defer`.
        task_ends: last step of each task of the stream.
        last_step: last step of the training, if it ends before the stream.
    """
    ends = {*task_ends} if last_step is None else {*task_ends, last_step}
    # The first average measures how long an exchange takes.
    is_measured = isinstance(deferral, (Drift, Measured))
    return DeferredSynchronization(sorted(ends), 0 if is_measured else None)


@dataclass
class ByteCounter:
    """Count of the bytes since the last average of all tiers, which is the same on all ranks.

    Attributes:
        every: bytes between two averages.
        synchronization: steps with an average, which this counter adds to.
    """

    every: float
    synchronization: DeferredSynchronization
    _counted: int = 0

    def count(self, step: int, step_bytes: int) -> None:
        """Count the bytes of the samples of all ranks in a step, and add an average if due."""
        self._counted += step_bytes
        if self._counted >= self.every or self.synchronization.is_due(step):
            self._counted = 0
            self.synchronization.averaged = step


@dataclass
class DeferralMeter:
    """Measurements of one rank, and the plans that all ranks make from those of all.

    Attributes:
        settings: section `defer`.
        synchronization: planned averages, which this meter changes.
        tiers: number of tiers.
        tier: tier of this rank.
        ranks: number of ranks in this tier.
        exchange_s: seconds of this rank's last exchange with other tiers; 0 if others do that.
        drift: distance of this rank's model from the last common one, relative to that one's norm.
    """

    settings: Drift | Measured
    synchronization: DeferredSynchronization
    tiers: int
    tier: int
    ranks: int
    exchange_s: float = 0.0
    drift: float = 0.0
    _interval: int = 1
    _steps: int = 0
    _seconds: float = 0.0
    _losses: list[float] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return how many numbers the measurements of all tiers have."""
        return _NUMBERS * self.tiers

    def observe(self, step_s: float, old_loss: float) -> None:
        """Count a step.

        Args:
            step_s: its seconds.
            old_loss: mean loss on old samples; NaN if it had none.
        """
        self._steps += 1
        self._seconds += step_s
        if not math.isnan(old_loss):
            self._losses = [*self._losses[:1], old_loss]

    def list_numbers(self) -> list[float]:
        """Return this rank's numbers, which are added to those of all ranks.

        The sum over a tier's ranks is the time of the one that exchanges, the mean time of a step,
        and the mean forgetting or drift.
        """
        numbers = [0.0] * self.size
        first = _NUMBERS * self.tier
        forgetting = self._losses[-1] - self._losses[0] if self._losses else 0.0
        need = self.drift if isinstance(self.settings, Drift) else forgetting
        numbers[first : first + _NUMBERS] = [
            self.exchange_s,
            self._seconds / max(self._steps, 1) / self.ranks,
            need / self.ranks,
        ]
        return numbers

    def plan(self, step: int, numbers: Sequence[float]) -> str:
        """Plan the average that follows the one in `step`; return the decision as a phrase.

        Args:
            step: step with an average across tiers.
            numbers: sum of what `list_numbers` returned on all ranks.
        """
        measured = [
            TierMeasurement(*numbers[first : first + _NUMBERS])
            for first in range(0, self.size, _NUMBERS)
        ]
        overhead = None if isinstance(self.settings, Drift) else self.settings.overhead
        rule = DeferralRule(overhead, self.settings.tolerance)
        # Nothing is known of a new task, so its averages begin with half of the interval.
        previous = max(1, self._interval // 4) if step in self.synchronization.ends else None
        self._interval = rule.plan_interval(previous or self._interval, measured)
        self.synchronization.plan(step, self._interval)
        self._steps, self._seconds, self._losses = 0, 0.0, []
        return self._describe(measured)

    def _describe(self, measured: Sequence[TierMeasurement]) -> str:
        exchange_s = min(each.exchange_s for each in measured)
        step_s = max(each.step_s for each in measured)
        need = max(each.need for each in measured)
        why = (
            f"a model has moved by {100 * need:.2g} % of its norm"
            if isinstance(self.settings, Drift)
            else f"the loss on old samples has risen by {need:.2f}"
        )
        return (
            f"the tiers average again after {self._interval} steps, or at the end of the task (an"
            f" exchange takes {exchange_s:.3g} s, a step {step_s:.3g} s, and {why})"
        )
