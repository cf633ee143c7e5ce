"""A plan as a file, with the model and the devices that it is for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded
from laggard.core.files.output_files import write_text
from laggard.core.yaml_source import parse_yaml
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.specification.section import Section

if TYPE_CHECKING:
    from laggard.workloads.planning.evaluate_plan import EvaluatedPlan
    from laggard.workloads.planning.planning_problem import PlanningProblem

MAX_BYTES = 1 << 20


class PlannedBlock(Section):
    """BlockPlacement of a block, by the names of devices."""

    name: str = Field(description="first and last operation of the block")
    parameter_bytes: float = Field(ge=0, allow_inf_nan=False, description="bytes of its parameters")
    devices: dict[str, int] = Field(
        min_length=1, description="samples of a step that each device computes"
    )
    average: ReplicaAverage = Field(
        default=ReplicaAverage.NONE, description="how replicas average: server or all_reduce"
    )
    server: str | None = Field(default=None, description="device that averages, for `server`")


class PlanFile(Section):
    """Content of a plan file."""

    batch: int = Field(ge=1, le=100_000_000, description="samples of a step")
    micro_batches: int = Field(
        ge=1, le=1024, description="parts of the batch that pass one after another"
    )
    step_s: float = Field(gt=0, allow_inf_nan=False, description="predicted seconds of a step")
    hosts: tuple[str, ...] = Field(
        min_length=1,
        max_length=100_000,
        description="hosts that compute, in the order in which they have the samples of a batch",
    )
    blocks: tuple[PlannedBlock, ...] = Field(
        min_length=1, max_length=1024, description="blocks in their order"
    )
    order: tuple[int, ...] = Field(
        max_length=10_000_000, description="numbers of the tasks of a step, in their order"
    )

    def find_ranks(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the rank of each host of the plan.

        Args:
            names: name of the host of each rank.

        Raises:
            InputError: a host has no rank.
        """
        missing = next((each for each in self.hosts if each not in names), None)
        if missing is not None:
            raise InputError(
                f"the plan needs {missing}, which has no worker — make a new plan with `laggard"
                " plan-model`, or place workers as when it was made"
            )
        return tuple(names.index(each) for each in self.hosts)

    def require_model(self, blocks: Sequence[tuple[str, float]]) -> None:
        """Raise an error unless the plan is for a model of these blocks.

        Args:
            blocks: name of each block, and bytes of its parameters.

        Raises:
            InputError: it is for another model.
        """
        known = [(each.name, each.parameter_bytes) for each in self.blocks]
        if known != [*blocks]:
            raise InputError(
                f"the plan is for a model of {len(known)} blocks that are not those of this one —"
                " make a new plan with `laggard plan-model`"
            )

    def to_plan(self) -> ModelPlan:
        """Return the plan, whose devices are the hosts in their order.

        Raises:
            InputError: a host is missing or there twice, or a block does not divide the batch.
        """
        places = {name: place for place, name in enumerate(self.hosts)}
        used = {name for block in self.blocks for name in block.devices}
        if len(places) < len(self.hosts) or used != {*places}:
            wrong = next(iter(sorted(used ^ {*places})), "one of them")
            raise InputError(
                f"hosts: {wrong} is not once among the hosts and in the blocks — list each host of"
                " the blocks once"
            )
        return ModelPlan(
            tuple(self._place(block, places) for block in self.blocks), self.micro_batches
        )

    def _place(self, block: PlannedBlock, places: Mapping[str, int]) -> BlockPlacement:
        samples = [0] * len(places)
        for name, count in block.devices.items():
            samples[places[name]] = count
        if min(block.devices.values()) < 1 or sum(samples) != self.batch:
            raise InputError(
                f"{block.name}: {sum(samples)} samples of {self.batch} on its devices — give each"
                " at least one, and all of them together"
            )
        if (block.server is not None) != (block.average is ReplicaAverage.SERVER) or (
            (len(block.devices) > 1) == (block.average is ReplicaAverage.NONE)
        ):
            raise InputError(
                f"{block.name}: {len(block.devices)} devices with the average {block.average} and"
                f" the server {block.server} — replicas need an average, and `server` a server"
            )
        if block.server is not None and block.server not in block.devices:
            raise InputError(
                f"{block.name}: the server {block.server} has no samples — choose one of its"
                " devices"
            )
        server = None if block.server is None else places[block.server]
        return BlockPlacement(tuple(samples), block.average, server)


def build_plan_file(problem: PlanningProblem, found: EvaluatedPlan) -> PlanFile:
    """Return the content of the file of a plan."""
    names = [each.name for each in problem.devices]
    begins = found.schedule.begins_s
    return PlanFile(
        batch=problem.batch,
        micro_batches=found.plan.micro_batches,
        step_s=found.step_s,
        hosts=tuple(
            name
            for device, name in enumerate(names)
            if any(each.samples[device] for each in found.plan.placements)
        ),
        blocks=tuple(
            PlannedBlock(
                name=block.name,
                parameter_bytes=block.parameter_bytes,
                devices={names[device]: placement.samples[device] for device in placement.devices},
                average=placement.average,
                server=None if placement.server is None else names[placement.server],
            )
            for block, placement in zip(problem.blocks, found.plan.placements, strict=True)
        ),
        order=tuple(sorted(range(len(begins)), key=lambda number: (begins[number], number))),
    )


def write_plan(path: Path, content: PlanFile) -> None:
    """Write the file of a plan."""
    import yaml

    values = content.model_dump(mode="json", exclude_none=True)
    write_text(path, yaml.safe_dump(values, sort_keys=False, default_flow_style=None))


def read_plan(path: Path) -> PlanFile:
    """Read the file of a plan.

    Raises:
        InputError: it cannot be read.
        ScenarioError: it is no plan.
    """
    return validate_model(parse_yaml(read_bounded(path, MAX_BYTES), str(path)), PlanFile)
