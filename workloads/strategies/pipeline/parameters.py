"""Parameters of `planned`; imports nothing heavy.

X. Yi, S. Zhang, Z. Luo, G. Long, L. Diao, C. Wu, Z. Zheng, J. Yang, W. Lin, "Optimizing distributed
training deployment in heterogeneous GPU clusters" (HeteroG), CoNEXT 2020.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from laggard.core.run_schema import SyncMode
from laggard.workloads.planning.plan_file import PlanFile
from laggard.workloads.strategies.base.parameters import Parameters

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext
    from laggard.workloads.strategies.pipeline.planned import Planned


def _inside_the_scenario(value: object) -> object:
    path = PurePosixPath(value) if isinstance(value, str) else None
    if path is not None and (
        path.is_absolute() or ".." in path.parts or path.suffix not in (".yaml", ".yml")
    ):
        raise ValueError(
            "this must be a .yaml file inside the scenario folder — write its path relative to that"
            " folder"
        )
    return value


class PlannedParameters(Parameters):
    """Parameters of `planned`: each worker has the blocks of the model that a plan gives it."""

    reference: ClassVar[str] = "Yi et al., CoNEXT 2020 (HeteroG)"
    summary: ClassVar[str] = (
        "divides the model: each worker has blocks of it, alone or as a replica, as a file of"
        " `laggard plan-model` says"
    )
    divides_model: ClassVar[bool] = True
    name: Literal["planned"]
    plan: Annotated[PlanFile | str, BeforeValidator(_inside_the_scenario)] = Field(
        default="plan.yaml",
        description="file of `laggard plan-model` inside the scenario folder, or its content",
    )

    @property
    def sync_mode(self) -> SyncMode:
        """Return `lockstep`: all ranks take the same steps."""
        return "lockstep"

    def describe(self) -> str:
        """Format name and parameters for people."""
        if isinstance(self.plan, str):
            return f"planned, plan {self.plan}"
        return f"planned, {len(self.plan.blocks)} blocks, {self.plan.micro_batches} micro-batches"

    def create_worker(self, context: TrainingContext) -> Planned:
        """Create one rank's side (see `Parameters`)."""
        from laggard.workloads.strategies.pipeline.planned import Planned

        assert isinstance(self.plan, PlanFile)
        return Planned(self.plan, context)
