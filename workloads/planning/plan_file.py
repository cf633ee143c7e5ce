"""A plan as a file, with the model and the devices that it is for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded
from laggard.core.files.output_files import write_text
from laggard.core.yaml_source import parse_yaml
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.planning.planning_problem import PlanningProblem
from laggard.workloads.specification.section import Section

MAX_BYTES = 1 << 20


class PlannedBlock(Section):
    """BlockPlacement of a block, by the names of devices."""

    name: str = Field(description="first and last operation of the block")
    devices: dict[str, int] = Field(
        min_length=1, description="samples of a step that each device computes"
    )
    average: ReplicaAverage = Field(
        default=ReplicaAverage.NONE, description="how replicas average: server or all_reduce"
    )
    server: str | None = Field(default=None, description="device that averages, for `server`")


class PlanFile(Section):
    """Content of a plan file."""

    problem: str = Field(description="digest of the model, the devices and the batch")
    batch: int = Field(ge=1, description="samples of a step")
    micro_batches: int = Field(
        ge=1, le=1024, description="parts of the batch that pass one after another"
    )
    step_s: float = Field(gt=0, allow_inf_nan=False, description="predicted seconds of a step")
    blocks: tuple[PlannedBlock, ...] = Field(min_length=1, description="blocks in their order")


def compute_digest(problem: PlanningProblem) -> str:
    """Return a digest of what a plan is for: blocks, devices and batch, but not their speeds."""
    known = {
        "blocks": [(each.name, each.parameter_bytes) for each in problem.blocks],
        "edges": [(each.src, each.dst, each.sample_bytes) for each in problem.edges],
        "devices": [each.name for each in problem.devices],
        "batch": problem.batch,
    }
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def build_plan_file(problem: PlanningProblem, plan: ModelPlan, step_s: float) -> PlanFile:
    """Return the content of the file of a plan."""
    names = [each.name for each in problem.devices]
    return PlanFile(
        problem=compute_digest(problem),
        batch=problem.batch,
        micro_batches=plan.micro_batches,
        step_s=step_s,
        blocks=tuple(
            PlannedBlock(
                name=block.name,
                devices={names[device]: placement.samples[device] for device in placement.devices},
                average=placement.average,
                server=None if placement.server is None else names[placement.server],
            )
            for block, placement in zip(problem.blocks, plan.placements, strict=True)
        ),
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


def restore_plan(content: PlanFile, problem: PlanningProblem) -> ModelPlan:
    """Return a plan for the model and the devices that it was made for.

    Raises:
        InputError: it was made for others, or does not divide the batch.
    """
    if content.problem != compute_digest(problem):
        raise InputError(
            "the plan is for another model, other devices or another batch — make a new one with"
            " `laggard plan-model`"
        )
    places: Mapping[str, int] = {each.name: place for place, each in enumerate(problem.devices)}
    placements = []
    for block in content.blocks:
        samples = [0] * len(problem.devices)
        for name, count in block.devices.items():
            if name not in places or count < 1:
                raise InputError(
                    f"{block.name}: {count} samples on {name} — give devices of the scenario,"
                    " and at least one sample to each"
                )
            samples[places[name]] = count
        if sum(samples) != problem.batch or (
            block.server is not None and block.server not in places
        ):
            raise InputError(
                f"{block.name}: {sum(samples)} samples of {problem.batch}, and the server"
                f" {block.server} — divide all samples, and name a device as the server"
            )
        server = None if block.server is None else places[block.server]
        placements.append(BlockPlacement(tuple(samples), block.average, server))
    if len(placements) != len(problem.blocks):
        raise InputError(
            f"{len(placements)} blocks, and the model has {len(problem.blocks)} — make a new plan"
            " with `laggard plan-model`"
        )
    return ModelPlan(tuple(placements), content.micro_batches)
