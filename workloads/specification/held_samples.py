"""Section `held_samples` of `workload.yaml`: each host stores a part of the training set."""

from __future__ import annotations

from pydantic import Field

from laggard.workloads.specification.section import Section, StepCount


class HeldSamples(Section):
    """Samples that each worker's host stores, evenly at first; a worker trains on those only."""

    migrate: bool = Field(
        default=True,
        description="whether samples move to the hosts of faster workers, over the links",
    )
    every: StepCount = Field(
        default=8, description="steps between two exchanges of step costs among the workers"
    )
    window: int = Field(
        default=32,
        ge=6,
        le=10_000,
        description="number of last steps from which a worker estimates its speed",
    )
    min_gain: float = Field(
        default=0.05,
        ge=0,
        lt=1,
        description="fraction of the slowest worker's step that a migration must save",
    )
