"""Memory that a plan needs on each device, and the limits of the devices."""

from __future__ import annotations

from laggard.core.errors import InputError
from laggard.workloads.planning.placements import BlockPlacement, ModelPlan
from laggard.workloads.planning.planning_problem import PlanningProblem

_COPIES = 3
"""Copies of the parameters without an optimizer's: the parameters, their gradients, and a copy that
is sent, received or timed."""


def compute_block_memory(
    problem: PlanningProblem, block: int, placement: BlockPlacement, device: int
) -> float:
    """Return the bytes that a block needs on a device.

    All samples of a step are saved until their backward passes, since all forward passes may come
    first.
    """
    samples = placement.samples[device]
    if not samples:
        return 0.0
    own = problem.blocks[block]
    copies = _COPIES + problem.optimizer_copies
    return copies * own.parameter_bytes + samples * own.saved_bytes


def compute_memory(problem: PlanningProblem, plan: ModelPlan) -> tuple[float, ...]:
    """Return the bytes that a plan needs on each device, [devices]."""
    return tuple(
        sum(
            compute_block_memory(problem, block, placement, device)
            for block, placement in enumerate(plan.placements)
        )
        for device in range(len(problem.devices))
    )


def fits_memory(problem: PlanningProblem, plan: ModelPlan) -> bool:
    """Return whether a plan fits the memory of all devices."""
    return all(
        device.memory_bytes is None or needed <= device.memory_bytes
        for device, needed in zip(problem.devices, compute_memory(problem, plan), strict=True)
    )


def require_memory(problem: PlanningProblem) -> None:
    """Raise an error if a model is larger than the memory of all devices together.

    Raises:
        InputError: it is, with the missing bytes.
    """
    limits = [device.memory_bytes for device in problem.devices]
    if any(limit is None for limit in limits):
        return
    copies = _COPIES + problem.optimizer_copies
    least = sum(
        copies * each.parameter_bytes + problem.batch * each.saved_bytes for each in problem.blocks
    )
    available = sum(limit for limit in limits if limit is not None)
    if least > available:
        raise InputError(
            f"the model needs {least / 1e6:.4g} MB, and all devices together have"
            f" {available / 1e6:.4g} MB, which is {(least - available) / 1e6:.4g} MB less — give"
            " devices more memory, or train with a smaller batch"
        )
