"""Result of one step of one rank: a row of `steps.parquet`."""

from __future__ import annotations

from dataclasses import dataclass

from laggard.core.span_schema import NOBODY

UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step, as the strategy reports it.

    Versions count the updates of the model that the ranks share. A strategy without a shared model
    has no versions.

    Attributes:
        loss: mean loss over this rank's samples; NaN if it had none.
        applied: whether the model was trained on this rank's samples; if not, they were computed
            in vain.
        read_version: version of the model that the gradient was computed on.
        applied_version: version of the model that this rank's work went into.
        staleness: number of updates by others between the model that was read and the one that was
            updated. Without versions: age in steps of the oldest model taken from others, or of
            the rank's own gradient.
        skipped: number of steps that this rank left out before this one.
        waited_for: rank that this one waited for before it could continue.
        is_metered: whether the strategy has counted the work of the step itself, in several parts.
        samples: samples whose loss the rank knows; None for those of its share.
    """

    loss: float
    applied: bool = True
    read_version: int = UNKNOWN
    applied_version: int = UNKNOWN
    staleness: int = 0
    skipped: int = 0
    waited_for: int = NOBODY
    is_metered: bool = False
    samples: int | None = None
