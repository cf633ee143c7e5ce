"""The tasks of one step of a plan: passes through blocks, messages between them, and averages.

Resources are the devices and the links, which carry one message at a time.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from laggard.core.simulation.task_graph import ResourceTask
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.planning.planning_problem import (
    AffineSeconds,
    BlockEdge,
    ModelBlock,
    PlanDevice,
    PlanningProblem,
)


class StepTaskKind(enum.StrEnum):
    """Kind of a task of a step."""

    FORWARD = "forward"
    BACKWARD = "backward"
    ACTIVATION = "activation"
    GRADIENT = "gradient"
    PUSH = "push"
    PULL = "pull"
    ALL_REDUCE = "all_reduce"
    UPDATE = "update"


@dataclass(frozen=True)
class StepTask:
    """Meaning of a task of a step.

    Attributes:
        kind: its kind.
        block: number of the block whose samples, gradients or parameters it concerns.
        micro_batch: number of the micro-batch; -1 for what follows the last one.
        device: number of the device that computes, or sends.
        dst: number of the device that receives; the same for computing.
        reader: number of the block that reads the outputs of `block`, for them and their gradients;
            -1 for another task.
    """

    kind: StepTaskKind
    block: int
    micro_batch: int
    device: int
    dst: int
    reader: int = -1


@dataclass
class StepTasks:
    """Tasks of a step, in an order in which each waits for earlier ones only.

    Attributes:
        tasks: times, resources and order of the tasks.
        meanings: what each of them does.
    """

    tasks: list[ResourceTask] = field(default_factory=list)
    meanings: list[StepTask] = field(default_factory=list)

    @property
    def is_possible(self) -> bool:
        """Return whether all links that the plan needs exist."""
        return all(math.isfinite(task.seconds) for task in self.tasks)


def build_step_tasks(problem: PlanningProblem, plan: ModelPlan) -> StepTasks:
    """Return the tasks of one step of a plan.

    Args:
        problem: the model and the continuum.
        plan: a plan of them.
    """
    return _StepBuilder(problem, plan).build()


def build_chain_tasks(plan: ModelPlan, parameter_bytes: Sequence[float]) -> StepTasks:
    """Return the tasks of one step of a plan for a chain of blocks, whose times are unknown.

    Their numbers are those of `build_step_tasks`.

    Args:
        plan: the plan.
        parameter_bytes: bytes of the parameters of each block.
    """
    blocks, devices = len(plan.placements), len(plan.placements[0].samples)
    unknown = (AffineSeconds(0.0, 0.0),) * blocks
    problem = PlanningProblem(
        tuple(ModelBlock(f"{number}", size) for number, size in enumerate(parameter_bytes)),
        tuple(BlockEdge(each, each + 1, 0.0) for each in range(blocks - 1)),
        tuple(PlanDevice(f"{number}", unknown, unknown) for number in range(devices)),
        {},
        sum(plan.placements[0].samples),
    )
    return build_step_tasks(problem, plan)


def list_flows(
    before: BlockPlacement, after: BlockPlacement, micro_batch: int, micro_batches: int
) -> Iterator[tuple[int, int, int]]:
    """Yield sender, receiver and samples of what passes between two placements of a micro-batch.

    Devices have the samples of a micro-batch in their order. Samples that stay on a device are
    flows from it to itself.
    """
    has, wants = ([*each.divide(micro_batch, micro_batches)] for each in (before, after))
    src = dst = 0
    while src < len(has) and dst < len(wants):
        moved = min(has[src], wants[dst])
        if moved:
            yield src, dst, moved
        has[src] -= moved
        wants[dst] -= moved
        if not has[src]:
            src += 1
        elif not wants[dst]:
            dst += 1


class _StepBuilder:
    """Builder of the tasks of one plan."""

    def __init__(self, problem: PlanningProblem, plan: ModelPlan) -> None:
        self._problem, self._plan = problem, plan
        self._found = StepTasks()
        self._links: dict[tuple[int, int], int] = {}
        # Numbers of the passes through a block, by micro-batch, block and device.
        self._forward: dict[tuple[int, int, int], int] = {}
        self._backward: dict[tuple[int, int, int], int] = {}

    def build(self) -> StepTasks:
        plan, blocks = self._plan, range(len(self._problem.blocks))
        for micro_batch in range(plan.micro_batches):
            for block in blocks:
                self._add_forward(block, micro_batch)
        for micro_batch in range(plan.micro_batches):
            for block in reversed(blocks):
                self._add_backward(block, micro_batch)
        for block in reversed(blocks):
            self._add_update(block)
        return self._found

    def _add(self, task: ResourceTask, meaning: StepTask) -> int:
        self._found.tasks.append(task)
        self._found.meanings.append(meaning)
        return len(self._found.tasks) - 1

    def _link(self, src: int, dst: int) -> int:
        """Return the number of a link as a resource; devices have the first numbers."""
        first = len(self._problem.devices)
        return self._links.setdefault((src, dst), first + len(self._links))

    def _add_forward(self, block: int, micro_batch: int) -> None:
        arrivals: dict[int, list[int]] = {}
        for edge in self._problem.edges:
            if edge.dst == block:
                self._move(
                    StepTaskKind.ACTIVATION,
                    edge.src,
                    block,
                    edge.sample_bytes,
                    micro_batch,
                    arrivals,
                )
        self._compute(StepTaskKind.FORWARD, block, micro_batch, arrivals)

    def _add_backward(self, block: int, micro_batch: int) -> None:
        arrivals: dict[int, list[int]] = {}
        for edge in self._problem.edges:
            if edge.src == block:
                self._move(
                    StepTaskKind.GRADIENT, edge.dst, block, edge.sample_bytes, micro_batch, arrivals
                )
        for device in self._plan.placements[block].devices:
            forward = self._forward.get((micro_batch, block, device))
            if forward is not None:
                arrivals.setdefault(device, []).append(forward)
        self._compute(StepTaskKind.BACKWARD, block, micro_batch, arrivals)

    def _move(
        self,
        kind: StepTaskKind,
        src_block: int,
        dst_block: int,
        sample_bytes: float,
        micro_batch: int,
        arrivals: dict[int, list[int]],
    ) -> None:
        """Add the messages from one block to another, and what their receivers wait for."""
        plan, problem = self._plan, self._problem
        passes = self._forward if kind is StepTaskKind.ACTIVATION else self._backward
        flows = list_flows(
            plan.placements[src_block],
            plan.placements[dst_block],
            micro_batch,
            plan.micro_batches,
        )
        for src, dst, samples in flows:
            before = passes[micro_batch, src_block, src]
            if src == dst:
                arrivals.setdefault(dst, []).append(before)
                continue
            task = ResourceTask(
                problem.transfer_s(src, dst, samples * sample_bytes),
                (self._link(src, dst),),
                (before,),
                problem.delay_s(src, dst),
            )
            block = src_block if kind is StepTaskKind.ACTIVATION else dst_block
            reader = max(src_block, dst_block)
            number = self._add(task, StepTask(kind, block, micro_batch, src, dst, reader))
            arrivals.setdefault(dst, []).append(number)

    def _compute(
        self,
        kind: StepTaskKind,
        block: int,
        micro_batch: int,
        arrivals: Mapping[int, Sequence[int]],
    ) -> None:
        placement, problem = self._plan.placements[block], self._problem
        is_forward = kind is StepTaskKind.FORWARD
        passes = self._forward if is_forward else self._backward
        counts = placement.divide(micro_batch, self._plan.micro_batches)
        for device, samples in enumerate(counts):
            if not samples:
                continue
            own = problem.devices[device]
            times = own.forward if is_forward else own.backward
            task = ResourceTask(
                times[block].of(samples), (device,), tuple(arrivals.get(device, ()))
            )
            passes[micro_batch, block, device] = self._add(
                task, StepTask(kind, block, micro_batch, device, device)
            )

    def _list_gradients(self, block: int, device: int) -> tuple[int, ...]:
        """Return the backward passes of a block on a device."""
        keys = ((each, block, device) for each in range(self._plan.micro_batches))
        return tuple(self._backward[key] for key in keys if key in self._backward)

    def _add_update(self, block: int) -> None:
        placement = self._plan.placements[block]
        if not self._problem.blocks[block].parameter_bytes:
            return
        if placement.average is ReplicaAverage.SERVER:
            self._add_server(block, placement)
        elif placement.average is ReplicaAverage.ALL_REDUCE:
            self._add_all_reduce(block, placement)
        else:
            (device,) = placement.devices
            self._update(block, device, self._list_gradients(block, device))

    def _update(self, block: int, device: int, after: tuple[int, ...]) -> int:
        task = ResourceTask(self._problem.update_s(device, block), (device,), after)
        return self._add(task, StepTask(StepTaskKind.UPDATE, block, -1, device, device))

    def _add_server(self, block: int, placement: BlockPlacement) -> None:
        server, size = placement.server, self._problem.blocks[block].parameter_bytes
        assert server is not None
        others = [device for device in placement.devices if device != server]
        arrivals = list(self._list_gradients(block, server))
        arrivals += [self._send(StepTaskKind.PUSH, block, each, server, size) for each in others]
        updated = self._update(block, server, tuple(arrivals))
        for device in others:
            self._send(StepTaskKind.PULL, block, server, device, size, (updated,))

    def _send(
        self,
        kind: StepTaskKind,
        block: int,
        src: int,
        dst: int,
        size_bytes: float,
        after: tuple[int, ...] | None = None,
    ) -> int:
        problem = self._problem
        task = ResourceTask(
            problem.transfer_s(src, dst, size_bytes),
            (self._link(src, dst),),
            self._list_gradients(block, src) if after is None else after,
            problem.delay_s(src, dst),
        )
        return self._add(task, StepTask(kind, block, -1, src, dst))

    def _add_all_reduce(self, block: int, placement: BlockPlacement) -> None:
        """Add the ring all-reduce of a block, which needs all its links at once."""
        devices = placement.devices
        seconds, ring = self._problem.all_reduce_s(block, devices)
        after = tuple(each for device in devices for each in self._list_gradients(block, device))
        task = ResourceTask(seconds, tuple(self._link(*ends) for ends in ring), after)
        reduced = self._add(task, StepTask(StepTaskKind.ALL_REDUCE, block, -1, *ring[0]))
        for device in devices:
            self._update(block, device, (reduced,))
