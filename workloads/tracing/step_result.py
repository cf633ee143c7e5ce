"""Result of one step of one rank: a row of `steps.parquet`."""

from __future__ import annotations

from dataclasses import dataclass

UNKNOWN = -1
NOBODY = -1


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a step, as the strategy reports it.

    Versions count the updates of the model that the ranks share; a strategy whose ranks share none
    has no versions.

    Attributes:
        loss: mean over this rank's samples; NaN where it had none.
        applied: whether this rank's samples were trained on; if not, they were computed in vain.
        read_version: of the model that the gradient was computed on.
        applied_version: of the model that this rank's work went into.
        staleness: updates by others between the model that was read and the one that was updated;
            without versions, by how many steps the oldest model that was taken from others was
            behind, or the own gradient.
        skipped: steps that this rank left out before this one.
        waited_for: the rank that this one waited for before it could go on.
    """

    loss: float
    applied: bool = True
    read_version: int = UNKNOWN
    applied_version: int = UNKNOWN
    staleness: int = 0
    skipped: int = 0
    waited_for: int = NOBODY
