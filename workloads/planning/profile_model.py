"""The blocks of a model, and the seconds of their passes on a core, measured."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import nn

from laggard.workloads.planning.planning_problem import AffineSeconds, BlockEdge, ModelBlock
from laggard.workloads.planning.split_model import SplitModel

_REPEATS, _WARM_UP = 5, 2


@dataclass(frozen=True)
class ModelProfile:
    """Blocks of a model with their seconds on a whole core of this machine.

    Attributes:
        blocks: the blocks.
        edges: outputs between them.
        forward: seconds of a forward pass through each block.
        backward: seconds of a backward pass through each block.
    """

    blocks: tuple[ModelBlock, ...]
    edges: tuple[BlockEdge, ...]
    forward: tuple[AffineSeconds, ...]
    backward: tuple[AffineSeconds, ...]


def profile_model(model: SplitModel, inputs: torch.Tensor) -> ModelProfile:
    """Measure the blocks of a model on a core, with all samples and with a quarter of them.

    Args:
        model: the blocks.
        inputs: a batch of at least eight samples, [n, ...].
    """
    blocks, edges, forward, backward = [], [], [], []
    values = inputs
    few = max(len(inputs) // 4, 2)
    for number, (module, (name, size_bytes)) in enumerate(
        zip(model.blocks, model.list_sizes(), strict=True)
    ):
        saved_bytes, outputs = _count_saved(module, values)
        blocks.append(
            ModelBlock(
                name,
                size_bytes,
                saved_bytes / len(inputs),
            )
        )
        if number + 1 < len(model.blocks):
            edges.append(BlockEdge(number, number + 1, outputs.nbytes / len(outputs)))
        times = [_time_passes(module, values[:count]) for count in (few, len(inputs))]
        forward.append(_fit(few, times[0][0], len(inputs), times[1][0]))
        backward.append(_fit(few, times[0][1], len(inputs), times[1][1]))
        values = outputs
    return ModelProfile(tuple(blocks), tuple(edges), tuple(forward), tuple(backward))


def _count_saved(module: nn.Module, inputs: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Return the bytes that a backward pass needs from a forward pass, and the output."""
    sizes: dict[int, int] = {}
    parameters = {each.untyped_storage().data_ptr() for each in module.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        place = tensor.untyped_storage().data_ptr()
        if place not in parameters:
            sizes[place] = tensor.untyped_storage().nbytes()
        return tensor

    entered = inputs.detach().clone()
    if entered.is_floating_point():
        entered.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = module(entered)
    # The input is what the block before has put out, which stays in memory for its backward pass.
    return float(sum(sizes.values())), outputs.detach()


def _time_passes(module: nn.Module, inputs: torch.Tensor) -> tuple[float, float]:
    """Return the shortest seconds of a forward and of a backward pass."""
    times: list[tuple[float, float]] = []
    for _ in range(_WARM_UP + _REPEATS):
        entered = inputs.detach().clone()
        if entered.is_floating_point():
            entered.requires_grad_()
        begun_s = time.thread_time()
        outputs = module(entered)
        computed_s = time.thread_time()
        if outputs.requires_grad:
            outputs.backward(torch.ones_like(outputs))
        times.append((computed_s - begun_s, time.thread_time() - computed_s))
        module.zero_grad(set_to_none=True)
    shortest = times[_WARM_UP:]
    return min(each for each, _ in shortest), min(each for _, each in shortest)


def _fit(few: int, few_s: float, many: int, many_s: float) -> AffineSeconds:
    """Return the line through two sizes, of which no part is negative."""
    if many == few:
        return AffineSeconds(0.0, many_s / many)
    sample_s = min(max((many_s - few_s) / (many - few), 0.0), many_s / many)
    return AffineSeconds(max(many_s - many * sample_s, 0.0), sample_s)
