"""Constraints of the choice of placements and times, for a search of the best plan (CP-SAT)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from laggard.core.simulation.task_graph import schedule_in_order
from laggard.workloads.planning.evaluate_plan import EvaluatedPlan
from laggard.workloads.planning.local_search import FoundPlan
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan, ReplicaAverage
from laggard.workloads.planning.plan_memory import compute_block_memory
from laggard.workloads.planning.planning_problem import PlanningProblem
from laggard.workloads.planning.step_tasks import (
    StepTask,
    StepTaskKind,
    build_step_tasks,
    list_flows,
)

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_UNITS = 1_000_000
"""Units of time in the step of the plan that is given."""
_KIBIBYTE = 1024.0


@dataclass
class _Pass:
    """Pass of a micro-batch through a block on a device, which may be absent."""

    start: cp_model.IntVar
    end: cp_model.IntVar
    present: cp_model.LinearExprT


@dataclass
class _Resources:
    """Intervals that exclude each other, by device or link."""

    by_name: dict[object, list[cp_model.IntervalVar]] = field(default_factory=dict)
    loads: dict[object, list[cp_model.LinearExprT]] = field(default_factory=dict)

    def add(
        self,
        names: Iterable[object],
        interval: cp_model.IntervalVar,
        load: cp_model.LinearExprT,
    ) -> None:
        for name in names:
            self.by_name.setdefault(name, []).append(interval)
            self.loads.setdefault(name, []).append(load)


class ExactModel:
    """Constraints of the choice of placements and times.

    Args:
        problem: the model and the continuum.
        placements: placements that every block may have.
        found: a known plan.

    Attributes:
        model: the constraints.
        unit_s: seconds of a unit of time.
        chosen: whether each block has each placement.
    """

    def __init__(
        self, problem: PlanningProblem, placements: tuple[BlockPlacement, ...], found: FoundPlan
    ) -> None:
        from ortools.sat.python import cp_model

        self.model, self.unit_s = cp_model.CpModel(), found.step_s / _UNITS
        self._problem, self._micro_batches = problem, found.plan.micro_batches
        self._horizon = _UNITS + 64
        self._resources = _Resources()
        # Begins of tasks; those that follow the passes are of one placement each.
        self._starts: dict[StepTask, list[tuple[cp_model.IntVar, cp_model.LinearExprT]]] = {}
        self._makespan = self.model.new_int_var(0, self._horizon, "makespan")
        blocks = range(len(problem.blocks))
        self.chosen: list[dict[BlockPlacement, cp_model.IntVar]] = [
            {each: self.model.new_bool_var("") for each in placements} for _ in blocks
        ]
        # Placements with the same samples differ only in what follows the backward passes.
        self._shapes: list[dict[tuple[int, ...], cp_model.IntVar]] = [
            self._group_shapes(row) for row in self.chosen
        ]
        self._pairs: dict[tuple[int, tuple[int, ...], int, tuple[int, ...]], cp_model.IntVar] = {}
        self._limit_memory(placements)
        passes = self._add_passes()
        self._connect(*passes)
        for block in blocks:
            for placement, chosen in self.chosen[block].items():
                self._add_update(block, placement, chosen, passes[1])
        for intervals in self._resources.by_name.values():
            self.model.add_no_overlap(intervals)
        self._add_bounds()
        self.model.minimize(self._makespan)
        for row, known in zip(self.chosen, found.plan.placements, strict=True):
            for placement, chosen in row.items():
                self.model.add_hint(chosen, placement == known)

    def evaluate(self, solver: cp_model.CpSolver) -> EvaluatedPlan:
        """Return the plan that a solver has found, with its tasks in the order of their begins."""
        plan = ModelPlan(
            tuple(
                next(each for each, chosen in row.items() if solver.value(chosen))
                for row in self.chosen
            ),
            self._micro_batches,
        )
        tasks = build_step_tasks(self._problem, plan)
        begins = [
            next(solver.value(start) for start, there in self._starts[each] if solver.value(there))
            for each in tasks.meanings
        ]
        order = sorted(range(len(begins)), key=lambda number: (begins[number], number))
        return EvaluatedPlan(plan, tasks, schedule_in_order(tasks.tasks, order))

    def _add_bounds(self) -> None:
        """Add what follows from the other constraints, so that less must be searched for a proof.

        No step is shorter than the load of a device or link, or than the passes through the blocks
        one after another, with the messages between them.
        """
        model, problem = self.model, self._problem
        for loads in self._resources.loads.values():
            model.add(self._makespan >= sum(loads))
        blocks = range(len(problem.blocks))
        # Earliest ends of a pass of each block on any device.
        forward, backward = (
            [model.new_int_var(0, self._horizon, "") for _ in blocks] for _ in range(2)
        )
        for block in blocks:
            for passes, before in ((forward, 0), (backward, forward[block])):
                is_forward = passes is forward
                least = [
                    (chosen, self._find_least(block, samples, {}, is_forward=is_forward))
                    for samples, chosen in self._shapes[block].items()
                ]
                model.add(passes[block] >= before + sum(size * chosen for chosen, size in least))
            model.add(self._makespan >= backward[block])
        for edge in problem.edges:
            for first, second, passes in (
                (edge.src, edge.dst, forward),
                (edge.dst, edge.src, backward),
            ):
                least_s = self._list_least_moves(first, second, edge.sample_bytes)
                model.add(
                    passes[second] >= passes[first] + sum(size * both for both, size in least_s)
                )

    def _list_least_moves(
        self, first: int, second: int, sample_bytes: float
    ) -> list[tuple[cp_model.IntVar, int]]:
        """Return the least time from a pass of a block to that of one that waits for it."""
        return [
            (
                self._pair(first, samples, second, others),
                self._find_least(
                    second,
                    others,
                    self._find_arrivals(samples, others, sample_bytes),
                    is_forward=first < second,
                ),
            )
            for samples in self._shapes[first]
            for others in self._shapes[second]
        ]

    def _find_least(
        self,
        block: int,
        samples: tuple[int, ...],
        arrivals: Mapping[tuple[int, int], int],
        *,
        is_forward: bool,
    ) -> int:
        """Return the least time of a pass on any device, with what it waits for."""
        devices = self._problem.devices
        return min(
            arrivals.get((micro_batch, number), 0) + max(self._to_units(times[block].of(count)), 1)
            for micro_batch in range(self._micro_batches)
            for number, device in enumerate(devices)
            for times in [device.forward if is_forward else device.backward]
            if (count := self._count(samples, number, micro_batch))
        )

    def _find_arrivals(
        self, samples: tuple[int, ...], others: tuple[int, ...], sample_bytes: float
    ) -> dict[tuple[int, int], int]:
        """Return the time of the longest message to each device, by micro-batch and device."""
        problem, found = self._problem, dict[tuple[int, int], int]()
        for micro_batch in range(self._micro_batches):
            flows = list_flows(
                BlockPlacement(samples), BlockPlacement(others), micro_batch, self._micro_batches
            )
            for src, dst, count in flows:
                seconds = problem.transfer_s(src, dst, count * sample_bytes)
                if src == dst or not math.isfinite(seconds):
                    continue
                moved = max(self._to_units(seconds), 1) + self._to_units(problem.delay_s(src, dst))
                key = micro_batch, dst
                found[key] = max(found.get(key, 0), moved)
        return found

    def _to_units(self, seconds: float) -> int:
        # Rounded down, so that a bound of the rounded step is one of the step.
        return max(int(seconds / self.unit_s), 0)

    def _group_shapes(
        self, row: Mapping[BlockPlacement, cp_model.IntVar]
    ) -> dict[tuple[int, ...], cp_model.IntVar]:
        self.model.add_exactly_one(row.values())
        shapes: dict[tuple[int, ...], cp_model.IntVar] = {}
        for samples in dict.fromkeys(each.samples for each in row):
            same = [chosen for each, chosen in row.items() if each.samples == samples]
            shapes[samples] = same[0]
            if len(same) > 1:
                shapes[samples] = self.model.new_bool_var("")
                self.model.add(sum(same) == shapes[samples])
        return shapes

    def _limit_memory(self, placements: Sequence[BlockPlacement]) -> None:
        for number, device in enumerate(self._problem.devices):
            if device.memory_bytes is None:
                continue
            needed = [
                math.ceil(compute_block_memory(self._problem, block, each, number) / _KIBIBYTE)
                * self.chosen[block][each]
                for block in range(len(self._problem.blocks))
                for each in placements
            ]
            self.model.add(sum(needed) <= math.floor(device.memory_bytes / _KIBIBYTE))

    def _add_interval(
        self,
        meaning: StepTask,
        names: Iterable[object],
        sizes: Sequence[tuple[cp_model.IntVar, int]],
        delay: int = 0,
    ) -> _Pass:
        """Add a task that takes as long as the true one of some choices; none if none is true."""
        model, known = self.model, [(chosen, max(size, 1)) for chosen, size in sizes]
        start = model.new_int_var(0, self._horizon, "")
        end = model.new_int_var(0, self._horizon, "")
        if len(known) == 1:
            present, size = known[0]
            interval = model.new_optional_fixed_size_interval_var(start, size, present, "")
            model.add(end == start + size).only_enforce_if(present)
        else:
            present = model.new_bool_var("")
            model.add(sum(chosen for chosen, _ in known) == present)
            length = model.new_int_var(0, max(size for _, size in known), "")
            model.add(length == sum(size * chosen for chosen, size in known))
            interval = model.new_optional_interval_var(start, length, end, present, "")
        self._resources.add(names, interval, sum(size * chosen for chosen, size in known))
        self._starts.setdefault(meaning, []).append((start, present))
        model.add(self._makespan >= end + delay).only_enforce_if(present)
        return _Pass(start, end, present)

    def _add_passes(self) -> tuple[dict[tuple[int, int, int], _Pass], ...]:
        """Add the forward and backward passes, by block, micro-batch and device."""
        found: tuple[dict[tuple[int, int, int], _Pass], ...] = ({}, {})
        problem = self._problem
        for block in range(len(problem.blocks)):
            for micro_batch in range(self._micro_batches):
                for number, device in enumerate(problem.devices):
                    for passes, kind, times in (
                        (found[0], StepTaskKind.FORWARD, device.forward),
                        (found[1], StepTaskKind.BACKWARD, device.backward),
                    ):
                        sizes = [
                            (chosen, self._to_units(times[block].of(count)))
                            for samples, chosen in self._shapes[block].items()
                            if (count := self._count(samples, number, micro_batch))
                        ]
                        if sizes:
                            key = block, micro_batch, number
                            meaning = StepTask(kind, block, micro_batch, number, number)
                            passes[key] = self._add_interval(meaning, [number], sizes)
        for key, forward in found[0].items():
            backward = found[1][key]
            self.model.add(backward.start >= forward.end).only_enforce_if(backward.present)
        return found

    def _count(self, samples: tuple[int, ...], device: int, micro_batch: int) -> int:
        return BlockPlacement(samples).divide(micro_batch, self._micro_batches)[device]

    def _pair(
        self, first: int, samples: tuple[int, ...], second: int, others: tuple[int, ...]
    ) -> cp_model.IntVar:
        """Return whether two blocks have these samples."""
        key = first, samples, second, others
        if key not in self._pairs:
            both = self.model.new_bool_var("")
            one, other = self._shapes[first][samples], self._shapes[second][others]
            self.model.add_bool_and([one, other]).only_enforce_if(both)
            self.model.add_bool_or([one.Not(), other.Not(), both])
            self._pairs[key] = both
        return self._pairs[key]

    def _pair_shapes(self, first: int, second: int) -> None:
        """Say that each placement of a block goes with one of another block."""
        of_first, of_second = self._shapes[first], self._shapes[second]
        for samples, chosen in of_first.items():
            pairs = [self._pair(first, samples, second, others) for others in of_second]
            self.model.add(sum(pairs) == chosen)
        for others, chosen in of_second.items():
            pairs = [self._pair(first, samples, second, others) for samples in of_first]
            self.model.add(sum(pairs) == chosen)

    def _connect(
        self,
        forward: Mapping[tuple[int, int, int], _Pass],
        backward: Mapping[tuple[int, int, int], _Pass],
    ) -> None:
        """Let passes wait for what other blocks send."""
        for edge in self._problem.edges:
            self._pair_shapes(edge.src, edge.dst)
            for micro_batch in range(self._micro_batches):
                self._send(edge.src, edge.dst, edge.sample_bytes, micro_batch, forward)
                self._send(edge.dst, edge.src, edge.sample_bytes, micro_batch, backward)

    def _send(
        self,
        first: int,
        second: int,
        sample_bytes: float,
        micro_batch: int,
        passes: Mapping[tuple[int, int, int], _Pass],
    ) -> None:
        problem, model = self._problem, self.model
        messages: dict[tuple[int, int], list[tuple[cp_model.IntVar, int]]] = {}
        for samples in self._shapes[first]:
            for others in self._shapes[second]:
                both = self._pair(first, samples, second, others)
                flows = list_flows(
                    BlockPlacement(samples),
                    BlockPlacement(others),
                    micro_batch,
                    self._micro_batches,
                )
                for src, dst, count in flows:
                    if src == dst:
                        before, after = (
                            passes[first, micro_batch, src],
                            passes[second, micro_batch, dst],
                        )
                        model.add(after.start >= before.end).only_enforce_if(both)
                        continue
                    seconds = problem.transfer_s(src, dst, count * sample_bytes)
                    if not math.isfinite(seconds):
                        model.add(both == 0)
                        continue
                    messages.setdefault((src, dst), []).append((both, self._to_units(seconds)))
        for (src, dst), sizes in messages.items():
            is_forward = first < second
            kind = StepTaskKind.ACTIVATION if is_forward else StepTaskKind.GRADIENT
            block, reader = sorted((first, second))
            meaning = StepTask(kind, block, micro_batch, src, dst, reader)
            message = self._add_interval(meaning, [(src, dst)], sizes)
            before, after = passes[first, micro_batch, src], passes[second, micro_batch, dst]
            delay = self._to_units(problem.delay_s(src, dst))
            model.add(message.start >= before.end).only_enforce_if(message.present)
            model.add(after.start >= message.end + delay).only_enforce_if(message.present)

    def _add_update(
        self,
        block: int,
        placement: BlockPlacement,
        chosen: cp_model.IntVar,
        backward: Mapping[tuple[int, int, int], _Pass],
    ) -> None:
        """Add what averages the gradients of a block and updates it, for one placement."""
        if not self._problem.blocks[block].parameter_bytes:
            return
        gradients = {
            device: [
                backward[block, micro_batch, device].end
                for micro_batch in range(self._micro_batches)
                if self._count(placement.samples, device, micro_batch)
            ]
            for device in placement.devices
        }
        if placement.average is ReplicaAverage.SERVER:
            self._add_server(block, placement, chosen, gradients)
        elif placement.average is ReplicaAverage.ALL_REDUCE:
            self._add_all_reduce(block, placement, chosen, gradients)
        else:
            (device,) = placement.devices
            self._update(block, device, chosen, gradients[device])

    def _update(
        self,
        block: int,
        device: int,
        chosen: cp_model.IntVar,
        after: Sequence[cp_model.LinearExprT],
    ) -> _Pass:
        seconds = self._problem.update_s(device, block)
        meaning = StepTask(StepTaskKind.UPDATE, block, -1, device, device)
        return self._follow(meaning, [device], chosen, seconds, after)

    def _follow(
        self,
        meaning: StepTask,
        names: Iterable[object],
        chosen: cp_model.IntVar,
        seconds: float,
        after: Sequence[cp_model.LinearExprT],
        delay: int = 0,
    ) -> _Pass:
        """Add a task of a placement that waits for others."""
        task = self._add_interval(meaning, names, [(chosen, self._to_units(seconds))], delay)
        for end in after:
            self.model.add(task.start >= end).only_enforce_if(chosen)
        return task

    def _add_server(
        self,
        block: int,
        placement: BlockPlacement,
        chosen: cp_model.IntVar,
        gradients: Mapping[int, Sequence[cp_model.LinearExprT]],
    ) -> None:
        problem, server = self._problem, placement.server
        assert server is not None
        size_bytes = problem.blocks[block].parameter_bytes
        others = [device for device in placement.devices if device != server]
        if any((a, b) not in problem.links for d in others for a, b in ((d, server), (server, d))):
            self.model.add(chosen == 0)
            return
        arrivals = list(gradients.get(server, ()))
        for device in others:
            delay = self._to_units(problem.delay_s(device, server))
            seconds = problem.transfer_s(device, server, size_bytes)
            meaning = StepTask(StepTaskKind.PUSH, block, -1, device, server)
            push = self._follow(
                meaning, [(device, server)], chosen, seconds, gradients[device], delay
            )
            arrivals.append(push.end + delay)
        updated = self._update(block, server, chosen, arrivals)
        for device in others:
            delay = self._to_units(problem.delay_s(server, device))
            seconds = problem.transfer_s(server, device, size_bytes)
            meaning = StepTask(StepTaskKind.PULL, block, -1, server, device)
            self._follow(meaning, [(server, device)], chosen, seconds, [updated.end], delay)

    def _add_all_reduce(
        self,
        block: int,
        placement: BlockPlacement,
        chosen: cp_model.IntVar,
        gradients: Mapping[int, Sequence[cp_model.LinearExprT]],
    ) -> None:
        problem = self._problem
        seconds, ring = problem.all_reduce_s(block, placement.devices)
        if not math.isfinite(seconds):
            self.model.add(chosen == 0)
            return
        after = [end for ends in gradients.values() for end in ends]
        meaning = StepTask(StepTaskKind.ALL_REDUCE, block, -1, *ring[0])
        reduced = self._follow(meaning, ring, chosen, seconds, after)
        for device in placement.devices:
            self._update(block, device, chosen, [reduced.end])
