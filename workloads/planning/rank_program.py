"""Instructions of one device in a step of a plan, in the order of the plan; pure.

All devices follow one order of all tasks of a step. So a device that waits for a message waits for
a task that is earlier in this order, and no two can wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from laggard.core.errors import InputError
from laggard.workloads.planning.placements import ModelPlan
from laggard.workloads.planning.step_tasks import StepTask, StepTaskKind, StepTasks, list_flows


@dataclass(frozen=True)
class SampleFlow:
    """Samples of a micro-batch that pass from one block to the next, or stay on a device.

    Attributes:
        number: number of the task that sends them; -1 if they stay.
        src: device that has them.
        src_first: their first row there.
        dst: device that needs them.
        dst_first: their first row there.
        samples: number of samples.
    """

    number: int
    src: int
    src_first: int
    dst: int
    dst_first: int
    samples: int


@dataclass(frozen=True)
class Instruction:
    """Task in which a device takes part.

    Attributes:
        number: number of the task, which all devices know it by.
        task: what it does.
        samples: samples of a pass, or of a message.
        sources: where the samples of a pass come from; for a message, the samples that it carries.
        after: numbers of messages and averages that an update waits for.
    """

    number: int
    task: StepTask
    samples: int = 0
    sources: tuple[SampleFlow, ...] = ()
    after: tuple[int, ...] = ()


def build_rank_program(
    tasks: StepTasks, plan: ModelPlan, order: Sequence[int], device: int
) -> tuple[Instruction, ...]:
    """Return the instructions of a device in one step.

    Args:
        tasks: tasks of a step of the plan, whose blocks are a chain.
        plan: the plan.
        order: numbers of all tasks, each after those that it waits for.
        device: number of the device.

    Raises:
        InputError: the order is none of these tasks.
    """
    require_order(tasks, order)
    program = _ProgramBuilder(tasks, plan)
    return tuple(
        program.build(number) for number in order if device in program.list_devices(number)
    )


def require_order(tasks: StepTasks, order: Sequence[int]) -> None:
    """Raise an error unless an order has every task once, and after those that it waits for.

    Raises:
        InputError: it has not.
    """
    if sorted(order) != list(range(len(tasks.tasks))):
        raise InputError(
            f"the order has {len(order)} tasks, and a step of the plan has {len(tasks.tasks)} —"
            " make a new plan with `laggard plan-model`"
        )
    place_of = {number: place for place, number in enumerate(order)}
    for number, task in enumerate(tasks.tasks):
        if any(place_of[before] > place_of[number] for before in task.after):
            raise InputError(
                f"task {number} comes before one that it waits for — make a new plan with `laggard"
                " plan-model`"
            )


class _ProgramBuilder:
    def __init__(self, tasks: StepTasks, plan: ModelPlan) -> None:
        self._tasks, self._plan = tasks, plan
        self._number_of = {meaning: number for number, meaning in enumerate(tasks.meanings)}

    def list_devices(self, number: int) -> tuple[int, ...]:
        """Return the devices that take part in a task."""
        task = self._tasks.meanings[number]
        if task.kind is StepTaskKind.ALL_REDUCE:
            return self._plan.placements[task.block].devices
        return task.device, task.dst

    def build(self, number: int) -> Instruction:
        task = self._tasks.meanings[number]
        if task.kind in (StepTaskKind.FORWARD, StepTaskKind.BACKWARD):
            counts = self._plan.placements[task.block].divide(
                task.micro_batch, self._plan.micro_batches
            )
            sources = tuple(flow for flow in self._list_sources(task) if flow.dst == task.device)
            return Instruction(number, task, counts[task.device], sources)
        if task.kind in (StepTaskKind.ACTIVATION, StepTaskKind.GRADIENT):
            flow = next(each for each in self._list_carried(task) if each.number == number)
            return Instruction(number, task, flow.samples, (flow,))
        after = tuple(
            before
            for before in self._tasks.tasks[number].after
            if self._tasks.meanings[before].kind
            not in (StepTaskKind.FORWARD, StepTaskKind.BACKWARD)
        )
        return Instruction(number, task, after=after)

    def _list_sources(self, task: StepTask) -> Iterator[SampleFlow]:
        """Yield the flows into a pass, of outputs or of gradients."""
        if task.kind is StepTaskKind.FORWARD and task.block > 0:
            yield from self._list_flows(StepTaskKind.ACTIVATION, task.block - 1, task)
        last = len(self._plan.placements) - 1
        if task.kind is StepTaskKind.BACKWARD and task.block < last:
            yield from self._list_flows(StepTaskKind.GRADIENT, task.block + 1, task)

    def _list_carried(self, task: StepTask) -> Iterator[SampleFlow]:
        """Yield the flows between the two blocks of a message."""
        if task.kind is StepTaskKind.ACTIVATION:
            into = StepTask(StepTaskKind.FORWARD, task.block + 1, task.micro_batch, 0, 0)
        else:
            into = StepTask(StepTaskKind.BACKWARD, task.block, task.micro_batch, 0, 0)
        yield from self._list_sources(into)

    def _list_flows(
        self, kind: StepTaskKind, src_block: int, into: StepTask
    ) -> Iterator[SampleFlow]:
        placements, micro_batches = self._plan.placements, self._plan.micro_batches
        # A message is known by the block whose outputs or gradients it carries.
        block = src_block if kind is StepTaskKind.ACTIVATION else into.block
        sent: dict[int, int] = {}
        got: dict[int, int] = {}
        flows = list_flows(
            placements[src_block], placements[into.block], into.micro_batch, micro_batches
        )
        for src, dst, samples in flows:
            number = -1
            if src != dst:
                message = StepTask(kind, block, into.micro_batch, src, dst, block + 1)
                number = self._number_of[message]
            yield SampleFlow(number, src, sent.get(src, 0), dst, got.get(dst, 0), samples)
            sent[src] = sent.get(src, 0) + samples
            got[dst] = got.get(dst, 0) + samples
