"""One rank's part of the steps of a plan: passes, messages, averages and updates.

Messages go point to point over torch's process group. All receives of a step are posted when it
begins, and sends wait for nobody, so a rank only waits for what its next pass needs.
"""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy

from laggard.core.span_schema import Phase
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.planning.placements import ModelPlan, ReplicaAverage
from laggard.workloads.planning.rank_program import Instruction, SampleFlow, build_rank_program
from laggard.workloads.planning.step_tasks import StepTaskKind, StepTasks
from laggard.workloads.tracing.recorder import Recorder

_REPEATS, _WARM_UP = 4, 2
_PARAMETER_KINDS = (StepTaskKind.PUSH, StepTaskKind.PULL)
Place = tuple[int, int]
"""A block and a micro-batch."""


@dataclass
class _StepState:
    """Tensors of a step, by block and micro-batch or by the number of a task."""

    inputs: dict[Place, torch.Tensor] = field(default_factory=dict)
    outputs: dict[Place, torch.Tensor] = field(default_factory=dict)
    arriving: dict[int, tuple[torch.Tensor, dist.Work]] = field(default_factory=dict)
    averaging: dict[int, tuple[torch.Tensor, dist.Work]] = field(default_factory=dict)
    # Tensors must live until they are sent.
    sending: list[tuple[torch.Tensor, dist.Work]] = field(default_factory=list)
    loss: float = 0.0


class PlanExecutor:
    """Executor of a plan on one rank.

    All ranks create theirs at the same time, since that opens process groups.

    Args:
        blocks: blocks of the model, of which only the rank's own have numbers.
        optimizers: optimizer of each of the rank's own blocks that have parameters.
        plan: the plan.
        tasks: tasks of a step of it.
        order: order of these tasks.
        device: number of this rank's device in the plan.
        ranks: rank of each device.
        recorder: recorder of the phases.
        shapes: inputs of the model, and outputs of each block, for some samples; [n, ...] each, on
            the device `meta`.
    """

    def __init__(
        self,
        blocks: Sequence[nn.Module],
        optimizers: Mapping[int, torch.optim.Optimizer],
        plan: ModelPlan,
        tasks: StepTasks,
        order: Sequence[int],
        device: int,
        ranks: Sequence[int],
        recorder: Recorder,
        shapes: Sequence[torch.Tensor],
    ) -> None:
        self._blocks, self._optimizers, self._plan = blocks, optimizers, plan
        self._device, self._ranks, self._recorder = device, ranks, recorder
        self._batch = sum(plan.placements[0].samples)
        self._program = build_rank_program(tasks, plan, order, device)
        self._messages = [each for each in self._program if self._is_received(each)]
        self._senders = {each.number: ranks[each.task.device] for each in self._messages}
        self._states = {
            number: FlatState(blocks[number])
            for number, placement in enumerate(plan.placements)
            if placement.samples[device]
        }
        # Walking through the modules of a block takes longer than many an operation.
        self._parameters = {number: [*blocks[number].parameters()] for number in self._states}
        self._shapes, self._step = shapes, _StepState()
        self._groups = self._open_groups()

    def _is_received(self, instruction: Instruction) -> bool:
        """Return whether an instruction is a message to this rank."""
        task = instruction.task
        is_message = bool(instruction.sources) and instruction.sources[0].number >= 0
        is_message &= task.kind in (StepTaskKind.ACTIVATION, StepTaskKind.GRADIENT)
        return (is_message or task.kind in _PARAMETER_KINDS) and task.dst == self._device

    def _open_groups(self) -> Mapping[tuple[int, ...], dist.ProcessGroup | None]:
        """Open a process group for each set of replicas that all-reduce."""
        sets = dict.fromkeys(
            each.devices
            for each in self._plan.placements
            if each.average is ReplicaAverage.ALL_REDUCE
        )
        return {
            devices: dist.new_group(sorted(self._ranks[each] for each in devices))
            for devices in sets
        }

    def list_rows(self, block: int) -> tuple[int, ...]:
        """Return the rows of the batch whose samples pass through a block on this rank."""
        return tuple(
            row
            for micro_batch in range(self._plan.micro_batches)
            for row in self._list_micro_rows(block, micro_batch)
        )

    def _list_micro_rows(self, block: int, micro_batch: int) -> range:
        micro_batches = self._plan.micro_batches
        counts = self._plan.placements[block].divide(micro_batch, micro_batches)
        first = self._batch * micro_batch // micro_batches + sum(counts[: self._device])
        return range(first, first + counts[self._device])

    def measure_step_ns(self) -> float:
        """Return the CPU time of this rank's passes in a step, in ns; no parameter changes."""
        total_ns = 0.0
        for number in self._states:
            twin, like = copy.deepcopy(self._blocks[number]), self._shapes[number]
            sizes = Counter(
                len(self._list_micro_rows(number, each)) for each in range(self._plan.micro_batches)
            )
            del sizes[0]
            for samples, times in sizes.items():
                inputs = torch.zeros((samples, *like.shape[1:]), dtype=like.dtype)
                total_ns += times * _time_pass(twin, inputs, number > 0)
        return total_ns

    def step(self, batch: Batch, rows: Mapping[int, int]) -> float:
        """Take a step.

        Args:
            batch: samples of the rows that the first and the last block have on this rank.
            rows: place of each row of the whole batch in `batch`.

        Returns:
            Sum of the losses of the samples whose last block is on this rank; 0 without any.
        """
        self._step = _StepState()
        for message in self._messages:
            self._receive(message)
        for instruction in self._program:
            self._execute(instruction, batch, rows)
        self._finish()
        return self._step.loss

    def _receive(self, message: Instruction) -> None:
        """Post the receive of a message."""
        task = message.task
        if task.kind in _PARAMETER_KINDS:
            like: torch.Tensor = self._parameters[task.block][0]
            shape: tuple[int, ...] = (self._states[task.block].parameters,)
        else:
            like = self._shapes[task.block + 1]
            shape = (message.samples, *like.shape[1:])
        buffer = torch.empty(shape, dtype=like.dtype)
        work = dist.irecv(buffer, src=self._senders[message.number], tag=message.number)
        assert work is not None
        self._step.arriving[message.number] = buffer, work

    def _execute(self, instruction: Instruction, batch: Batch, rows: Mapping[int, int]) -> None:
        task = instruction.task
        match task.kind:
            case StepTaskKind.FORWARD:
                self._forward(instruction, batch, rows)
            case StepTaskKind.BACKWARD:
                self._backward(instruction)
            case StepTaskKind.ALL_REDUCE:
                self._all_reduce(instruction)
            case StepTaskKind.UPDATE:
                self._update(instruction)
            case _:
                if task.device == self._device:
                    self._send(instruction)

    def _wait_for(self, number: int) -> torch.Tensor:
        """Return a message when it has arrived, and record the wait for its sender."""
        buffer, work = self._step.arriving.pop(number)
        if not work.is_completed():
            sender = self._senders[number]
            self._recorder.enter(Phase.COMM, peer=sender, payload_bytes=buffer.nbytes)
            work.wait()
        return buffer

    def _gather(self, sources: Sequence[SampleFlow], own: torch.Tensor | None) -> torch.Tensor:
        """Return the rows of a pass, from messages and from this rank's own tensor."""
        parts = []
        for flow in sources:
            if flow.number >= 0:
                parts.append(self._wait_for(flow.number))
            else:
                assert own is not None
                parts.append(own[flow.src_first : flow.src_first + flow.samples])
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _forward(self, instruction: Instruction, batch: Batch, rows: Mapping[int, int]) -> None:
        task, state = instruction.task, self._step
        place = task.block, task.micro_batch
        wanted = (
            [rows[row] for row in self._list_micro_rows(*place)]
            if self._needs_rows(task.block)
            else []
        )
        if task.block == 0:
            inputs = batch.inputs[wanted]
        else:
            own = state.outputs.get((task.block - 1, task.micro_batch))
            inputs = self._gather(instruction.sources, own)
        inputs = inputs.detach()
        if task.block:
            inputs.requires_grad_()
        self._recorder.enter(Phase.FORWARD, work=instruction.samples)
        outputs = self._blocks[task.block](inputs)
        if task.block == len(self._blocks) - 1:
            losses = cross_entropy(outputs, batch.labels[wanted], reduction="sum")
            state.loss += losses.item()
            outputs = losses / self._batch
        state.inputs[place], state.outputs[place] = inputs, outputs
        self._recorder.enter(Phase.OTHER)

    def _needs_rows(self, block: int) -> bool:
        return block in (0, len(self._blocks) - 1)

    def _backward(self, instruction: Instruction) -> None:
        task, state = instruction.task, self._step
        outputs = state.outputs.pop((task.block, task.micro_batch))
        gradient = None
        if task.block < len(self._blocks) - 1:
            following = state.inputs.get((task.block + 1, task.micro_batch))
            own = None if following is None else following.grad
            gradient = self._gather(instruction.sources, own)
        self._recorder.enter(Phase.BACKWARD, work=instruction.samples)
        # The gradients of the parameters add up until the update of the block.
        outputs.backward(gradient)  # type: ignore[no-untyped-call]
        self._recorder.enter(Phase.OTHER)

    def _read_gradients(self, block: int) -> torch.Tensor:
        """Return the gradients of a block as one vector, [parameters]."""
        flat = self._states[block]
        return flat.read_gradients()[: flat.parameters]

    def _send(self, instruction: Instruction) -> None:
        task, state = instruction.task, self._step
        if task.kind is StepTaskKind.PUSH:
            tensor = self._read_gradients(task.block)
            self._forget_gradients(task.block)
        elif task.kind is StepTaskKind.PULL:
            flat = self._states[task.block]
            tensor = flat.read()[: flat.parameters]
        else:
            flow = instruction.sources[0]
            if task.kind is StepTaskKind.ACTIVATION:
                whole = state.outputs[task.block, task.micro_batch].detach()
            else:
                gradient = state.inputs[task.block + 1, task.micro_batch].grad
                assert gradient is not None
                whole = gradient
            tensor = whole[flow.src_first : flow.src_first + flow.samples].contiguous()
        work = dist.isend(tensor, dst=self._ranks[task.dst], tag=instruction.number)
        assert work is not None
        state.sending.append((tensor, work))

    def _all_reduce(self, instruction: Instruction) -> None:
        block = instruction.task.block
        gradients, group = self._read_gradients(block), self._groups[self._devices(block)]
        work = dist.all_reduce(gradients, group=group, async_op=True)
        assert work is not None
        self._step.averaging[instruction.number] = gradients, work

    def _devices(self, block: int) -> tuple[int, ...]:
        return self._plan.placements[block].devices

    def _update(self, instruction: Instruction) -> None:
        block, averaging = instruction.task.block, self._step.averaging
        total: torch.Tensor | None = None
        for number in instruction.after:
            if number in averaging:
                total, work = averaging.pop(number)
                self._recorder.enter(Phase.COMM, payload_bytes=total.nbytes)
                work.wait()
            else:
                total = self._read_gradients(block) if total is None else total
                total += self._wait_for(number)
        self._recorder.enter(Phase.OPTIMIZER)
        if total is not None:
            self._states[block].write_gradients(total)
        self._optimizers[block].step()
        self._forget_gradients(block)
        self._recorder.enter(Phase.OTHER)

    def _forget_gradients(self, block: int) -> None:
        for each in self._parameters[block]:
            each.grad = None

    def _finish(self) -> None:
        """Wait for the models that servers send, and until everything is sent."""
        for message in self._messages:
            if message.task.kind is StepTaskKind.PULL:
                received = self._wait_for(message.number)
                flat = self._states[message.task.block]
                flat.write(torch.cat([received, flat.read()[flat.parameters :]]))
        for _, work in self._step.sending:
            if not work.is_completed():
                self._recorder.enter(Phase.COMM)
                work.wait()
        self._recorder.enter(Phase.OTHER)


def find_shapes(blocks: Sequence[nn.Module], example: torch.Tensor) -> list[torch.Tensor]:
    """Return some samples and what each block makes of them; all on the device `meta`."""
    found = [example]
    with torch.device("meta"), torch.no_grad():
        for block in blocks:
            was_training = block.training
            block.eval()
            found.append(block(found[-1]))
            block.train(was_training)
    return found


def _time_pass(block: nn.Module, inputs: torch.Tensor, needs_gradient: bool) -> float:
    """Return the shortest CPU time of a forward and a backward pass, in ns."""
    shortest_ns = math.inf
    for _ in range(_WARM_UP + _REPEATS):
        entered = inputs.clone().requires_grad_(needs_gradient)
        began_ns = time.thread_time_ns()
        outputs = block(entered)
        if outputs.requires_grad:
            outputs.backward(torch.ones_like(outputs))
        shortest_ns = min(shortest_ns, time.thread_time_ns() - began_ns)
    return shortest_ns
