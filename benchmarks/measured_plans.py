"""Published pipelines of two clusters: measured seconds of a step, and simulated ones.

    python benchmarks/measured_plans.py SAILOR

SAILOR has the published profiles, plans and measurements of F. Strati et al., *Sailor: automating
distributed training over dynamic, heterogeneous, and geo-distributed clusters*, SOSP 2025
(github.com/eth-easl/sailor, `sailor/Planner/simulations`): the folders `profiles`, `mit` and
`clariden`. The rates of links are those of its file `sailor/providers/multizone_bandwidths_het.json`.

One number is fitted to the plans of one cluster, and the plans of the other are predicted with it:
the seconds that every message takes besides its bytes. The runtime is DeepSpeed's, so a message
between two stages occupies both of them, and each alternates forward and backward passes ("1F1B").
"""

from __future__ import annotations

import itertools
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import BaseModel, TypeAdapter
from scipy.stats import spearmanr

from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.simulation.network import FRAMING_OVERHEAD
from laggard.core.simulation.task_graph import ResourceTask, schedule_in_order
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.planning.planning_problem import (
    AffineSeconds,
    BlockEdge,
    ModelBlock,
    PlanDevice,
    PlanningProblem,
)
from laggard.workloads.planning.step_tasks import StepTask, StepTaskKind, build_step_tasks

CLUSTERS = ("mit", "clariden")
COPIED = ("mit/plan_config_N3_D1", "clariden/plan_config_N4_D4")
"""Plans whose measurements are copies of others, or of another plan."""
LEAST_MICRO_BATCH = 2

HIDDEN, SEQUENCE, VOCABULARY, FLOAT_BYTES = 1024, 2048, 50272, 4
SAMPLE_BYTES = float(FLOAT_BYTES * HIDDEN * SEQUENCE)
LAYER_BYTES = float(FLOAT_BYTES * (12 * HIDDEN**2 + 13 * HIDDEN))
EMBEDDING_BYTES = float(FLOAT_BYTES * HIDDEN * (VOCABULARY + SEQUENCE))

SLOW_LINK_BYTES_S, FAST_LINK_BYTES_S, GH_LINK_BYTES_S = 115.7e6, 2.857e9, 92.55e9
"""Measured rates between nodes: of RTX-3090 nodes, of other nodes at MIT, and of four GH200."""

MESSAGE_S: tuple[float, ...] = (0.0, *np.geomspace(1e-4, 0.1, 61).tolist())
"""Seconds of a message besides its bytes, of which one is fitted."""


_Profile = Mapping[int, Mapping[int, Mapping[int, tuple[float, float, float]]]]
"""Seconds of the passes and the update by micro-batch, devices that share the work, and layer."""
_PROFILE = TypeAdapter[_Profile](_Profile)
_Nodes = tuple[tuple[tuple[str, int, str]], int]


class PublishedPipeline(BaseModel):
    """Stages of a published plan: their layers, the nodes of every replica, and the replicas."""

    layers_per_stage: tuple[tuple[int, ...], ...]
    tmp_per_stage: tuple[tuple[_Nodes, ...], ...]
    dp: tuple[int, ...]


class PublishedPlan(BaseModel):
    """A file of a plan: samples of a micro-batch and of a step, and measured seconds."""

    pipeline_list: tuple[PublishedPipeline]
    mbs: int
    gbs: int
    real: float


@dataclass(frozen=True)
class Replica:
    """Devices of one replica of a stage, which share the work of every layer.

    Attributes:
        gpu: name of the GPU type.
        forward_s: seconds of a forward pass of a micro-batch.
        backward_s: seconds of a backward pass of it.
        update_s: seconds of an update of the parameters.
    """

    gpu: str
    forward_s: float
    backward_s: float
    update_s: float


@dataclass(frozen=True)
class MeasuredPlan:
    """Published plan with its measurement.

    Attributes:
        name: cluster and name of the file.
        stages: replicas of each stage, [stages][replicas].
        parameter_bytes: bytes of the parameters of each stage, [stages].
        micro_batch: samples of a micro-batch of one replica.
        micro_batches: micro-batches of a step.
        measured_s: seconds of a step.
    """

    name: str
    stages: tuple[tuple[Replica, ...], ...]
    parameter_bytes: tuple[float, ...]
    micro_batch: int
    micro_batches: int
    measured_s: float

    @property
    def profile_s(self) -> float:
        """Return the seconds of a pipeline without messages: one pass, then the slowest stage."""
        times_s = [max(each.forward_s + each.backward_s for each in stage) for stage in self.stages]
        return sum(times_s) + (self.micro_batches - 1) * max(times_s)


def read_plans(sailor: Path, cluster: str) -> Iterator[MeasuredPlan]:
    """Yield the plans of a cluster that are measured themselves."""
    profiles = {
        path.parent.name: _PROFILE.validate_json(path.read_bytes())
        for path in sorted((sailor / "profiles" / "OPT-350").glob("*/profile.json"))
    }
    for path in sorted((sailor / cluster).rglob("*.json")):
        name, published = (
            f"{cluster}/{path.stem}",
            PublishedPlan.model_validate_json(path.read_bytes()),
        )
        if name not in COPIED and published.mbs >= LEAST_MICRO_BATCH:
            yield _read_plan(name, published, profiles)


def _read_plan(
    name: str, published: PublishedPlan, profiles: Mapping[str, _Profile]
) -> MeasuredPlan:
    (pipeline,) = published.pipeline_list
    last = max(itertools.chain.from_iterable(pipeline.layers_per_stage))

    def read_replica(layers: Sequence[int], nodes: _Nodes) -> Replica:
        ((gpu, _, _),), degree = nodes
        times = profiles[gpu][published.mbs][degree]
        passes = zip(*(times[layer] for layer in layers), strict=True)
        forward_s, backward_s, update_s = (sum(seconds) for seconds in passes)
        return Replica(gpu, forward_s, backward_s, update_s)

    def count_bytes(layers: Sequence[int]) -> float:
        # The last layer reads words from the embedding: a stage without the first has a copy of it.
        has_embedding = 0 in layers or last in layers
        return (
            sum(0 < each < last for each in layers) * LAYER_BYTES + has_embedding * EMBEDDING_BYTES
        )

    stages = zip(pipeline.layers_per_stage, pipeline.tmp_per_stage, strict=True)
    return MeasuredPlan(
        name=name,
        stages=tuple(
            tuple(read_replica(layers, each) for each in nodes) for layers, nodes in stages
        ),
        parameter_bytes=tuple(count_bytes(layers) for layers in pipeline.layers_per_stage),
        micro_batch=published.mbs,
        micro_batches=published.gbs // published.mbs // pipeline.dp[0],
        measured_s=published.real,
    )


def simulate(plan: MeasuredPlan, message_s: float) -> float:
    """Return the simulated seconds of a step."""
    built = build_step_tasks(_state_problem(plan), _state_plan(plan))
    devices = [each for stage in plan.stages for each in stage]
    tasks = [
        _hold_devices(task, meaning, devices, message_s)
        for task, meaning in zip(built.tasks, built.meanings, strict=True)
    ]
    order = sorted(
        range(len(tasks)), key=lambda each: (*_find_turn(plan, built.meanings[each]), each)
    )
    return schedule_in_order(tasks, order).makespan_s


def _hold_devices(
    task: ResourceTask, meaning: StepTask, devices: Sequence[Replica], message_s: float
) -> ResourceTask:
    """Return a task as DeepSpeed has it: messages occupy their ends, and updates are profiled."""
    if meaning.kind in (StepTaskKind.ACTIVATION, StepTaskKind.GRADIENT):
        ends = (meaning.device, meaning.dst)
        return replace(task, seconds=task.seconds + message_s, resources=(*task.resources, *ends))
    if meaning.kind is StepTaskKind.UPDATE:
        return replace(task, seconds=devices[meaning.device].update_s)
    return task


def _find_turn(plan: MeasuredPlan, meaning: StepTask) -> tuple[int, int]:
    """Return when a task has its turn: the number of a turn of all stages, then the place in it.

    In each turn a stage first exchanges messages, and then computes one pass: stage s of S the
    forward pass of micro-batch m in turn 2 m + s, and the backward pass in turn 2 m + 2 S - 1 - s.
    """
    stages, stage, micro_batch = len(plan.stages), meaning.block, meaning.micro_batch
    if micro_batch < 0:
        return (2 * (plan.micro_batches + stages), 0)
    is_message = meaning.kind in (StepTaskKind.ACTIVATION, StepTaskKind.GRADIENT)
    if meaning.kind in (StepTaskKind.BACKWARD, StepTaskKind.GRADIENT):
        turn = 2 * (micro_batch + stages) - 1 - stage
    else:
        turn = 2 * micro_batch + stage + is_message
    return (turn, not is_message)


def _state_problem(plan: MeasuredPlan) -> PlanningProblem:
    devices = [each for stage in plan.stages for each in stage]
    stages = range(len(plan.stages))

    def link(src: int, dst: int) -> NetworkHop:
        # Rates were measured without the framing, which a planned link counts.
        rate_mbps = _find_rate(devices[src].gpu, devices[dst].gpu) * 8e-6 * FRAMING_OVERHEAD
        return NetworkHop((f"{src}", f"{dst}"), rate_mbps, rtt_ms=0.0)

    return PlanningProblem(
        blocks=tuple(ModelBlock(f"{each}", plan.parameter_bytes[each]) for each in stages),
        edges=tuple(BlockEdge(each, each + 1, SAMPLE_BYTES) for each in stages[:-1]),
        devices=tuple(
            PlanDevice(
                f"{number}",
                (AffineSeconds(each.forward_s, 0.0),) * len(stages),
                (AffineSeconds(each.backward_s, 0.0),) * len(stages),
            )
            for number, each in enumerate(devices)
        ),
        links={
            (src, dst): link(src, dst)
            for src, dst in itertools.permutations(range(len(devices)), 2)
        },
        batch=plan.micro_batch * plan.micro_batches * len(plan.stages[0]),
        handling=MessageHandling(packing_s_per_mb=0.0, applying_s_per_mb=0.0),
    )


def _find_rate(src: str, dst: str) -> float:
    """Return the bytes per second between two nodes."""
    if "GH-96" in (src, dst):
        return GH_LINK_BYTES_S
    return SLOW_LINK_BYTES_S if "RTX-3090" in (src, dst) else FAST_LINK_BYTES_S


def _state_plan(plan: MeasuredPlan) -> ModelPlan:
    replicas = len(plan.stages[0])
    average = ReplicaAverage.ALL_REDUCE if replicas > 1 else ReplicaAverage.NONE
    each = plan.micro_batch * plan.micro_batches
    devices = replicas * len(plan.stages)

    def place(stage: int) -> BlockPlacement:
        own = range(stage * replicas, (stage + 1) * replicas)
        return BlockPlacement(tuple(each * (device in own) for device in range(devices)), average)

    return ModelPlan(tuple(map(place, range(len(plan.stages)))), plan.micro_batches)


def fit(plans: Sequence[MeasuredPlan]) -> float:
    """Return the seconds of a message besides its bytes with the least mean relative error."""

    def find_error(message_s: float) -> float:
        errors = (abs(simulate(each, message_s) / each.measured_s - 1) for each in plans)
        return statistics.fmean(errors)

    return min(MESSAGE_S, key=find_error)


def main() -> None:
    """Print each cluster's plans, predicted with the numbers of the other one."""
    sailor = Path(sys.argv[1])
    plans = {cluster: tuple(read_plans(sailor, cluster)) for cluster in CLUSTERS}
    for known, other in itertools.permutations(CLUSTERS):
        fitted = fit(plans[known])
        print(f"\nfrom {known}: {fitted * 1e3:.2f} ms of every message")
        print(
            "| plan | measured | predicted | error | from the profiles alone |\n|---|---|---|---|---|"
        )
        predicted = [simulate(plan, fitted) for plan in plans[other]]
        for plan, step_s in zip(plans[other], predicted, strict=True):
            print(
                f"| {plan.name} | {plan.measured_s:.2f} s | {step_s:.2f} s"
                f" | {step_s / plan.measured_s - 1:+.1%} | {plan.profile_s / plan.measured_s - 1:+.1%} |"
            )
        measured = np.array([plan.measured_s for plan in plans[other]])
        profiles = np.array([plan.profile_s for plan in plans[other]])
        print(
            f"{len(measured)} plans: mean error {np.abs(predicted / measured - 1).mean():.1%},"
            f" from the profiles alone {np.abs(profiles / measured - 1).mean():.1%};"
            f" rank correlation {spearmanr(predicted, measured).statistic:.2f}"
        )


if __name__ == "__main__":
    main()
