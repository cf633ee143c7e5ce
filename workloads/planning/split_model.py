"""A model as a chain of blocks, between which one tensor passes.

The model is traced with torch.fx (J. K. Reed et al., "torch.fx: Practical program capture and
transformation for deep learning in Python", MLSys 2022). It is divided at places where only one
tensor is still needed, so a residual connection stays within a block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx, nn
from torch.utils.flop_counter import FlopCounterMode

from laggard.core.errors import InputError

MOST_BLOCKS = 12
TRACE_ERRORS = (
    fx.proxy.TraceError,
    TypeError,
    ValueError,
    RuntimeError,
    AttributeError,
    NotImplementedError,
    IndexError,
    KeyError,
)
"""Errors of models that torch.fx cannot trace, such as those with control flow by values."""


@dataclass(frozen=True)
class SplitModel:
    """Chain of blocks.

    Attributes:
        blocks: modules, each of which computes on the output of the one before.
        names: name of each: its number, and its first and last operation.
        note: sentence about what could not be divided; None if there is nothing to say.
    """

    blocks: tuple[nn.Module, ...]
    names: tuple[str, ...]
    note: str | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Compute all blocks, one after another."""
        values = inputs
        for block in self.blocks:
            values = block(values)
        return values

    def list_sizes(self) -> tuple[tuple[str, float], ...]:
        """Return the name of each block, and the bytes of its parameters."""
        return tuple(
            (name, float(sum(each.nbytes for each in block.parameters())))
            for name, block in zip(self.names, self.blocks, strict=True)
        )


def split_model(model: nn.Module, inputs: torch.Tensor, most: int = MOST_BLOCKS) -> SplitModel:
    """Divide a model into at most some blocks of about equal work.

    Its parameters stay those of the model.

    Args:
        model: the model.
        inputs: a batch of at least two samples, [n, ...].
        most: largest number of blocks.

    Raises:
        InputError: the model does not return one tensor.
    """
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        if not isinstance(model(inputs), torch.Tensor):
            raise InputError(
                f"{type(model).__name__} does not return one tensor — give a model whose output is"
                " one tensor of logits"
            )
    try:
        traced = fx.symbolic_trace(model)
    except TRACE_ERRORS as error:
        return _split_children(model, f"{type(error).__name__}: {error}", most)
    nodes = [each for each in traced.graph.nodes if each.op not in ("placeholder", "output")]
    with torch.random.fork_rng(devices=[]):
        work = measure_work(traced, inputs, nodes)
    cuts = choose_cuts(work, sorted(_list_cuts(traced, nodes)), most)
    if not cuts:
        return SplitModel((model,), (type(model).__name__,), "the model has one block only")
    bounds = [0, *cuts, len(nodes)]
    blocks = tuple(_build_block(traced, nodes[first:last]) for first, last in pairwise(bounds))
    names = tuple(_name(nodes[first], nodes[last - 1]) for first, last in pairwise(bounds))
    return SplitModel(blocks, names)


def _split_children(model: nn.Module, reason: str, most: int) -> SplitModel:
    """Divide a model that cannot be traced at the borders of its modules, if it is a sequence."""
    why = f"torch.fx cannot trace the model ({reason.splitlines()[0][:120]})"
    if not isinstance(model, nn.Sequential) or len(model) < 2:
        return SplitModel((model,), (type(model).__name__,), f"{why}, so it is one block")
    children = list(model.named_children())
    count = min(most, len(children))
    bounds = [len(children) * place // count for place in range(count + 1)]
    parts = [children[first:last] for first, last in pairwise(bounds)]
    return SplitModel(
        tuple(nn.Sequential(*(module for _, module in part)) for part in parts),
        tuple(f"{part[0][0]} to {part[-1][0]}" for part in parts),
        f"{why}, so it is divided at the borders of its modules only",
    )


def _build_block(traced: fx.GraphModule, nodes: Sequence[fx.Node]) -> fx.GraphModule:
    """Return a module of some nodes, whose input is the one tensor that they need."""
    graph, copies = fx.Graph(), {}
    inside = {*nodes}
    entered = next(each for node in nodes for each in node.all_input_nodes if each not in inside)
    copies[entered] = graph.placeholder("values")
    for node in nodes:
        copies[node] = graph.node_copy(node, lambda each: copies[each])
    graph.output(copies[nodes[-1]])
    return fx.GraphModule(traced, graph)


def _name(first: fx.Node, last: fx.Node) -> str:
    begin, end = str(first.target), str(last.target)
    if first.op == "call_function":
        begin = first.name
    if last.op == "call_function":
        end = last.name
    return begin if begin == end else f"{begin} to {end}"


class _WorkCounter(fx.Interpreter):
    """Interpreter that counts the operations of each node."""

    def __init__(self, traced: fx.GraphModule, counter: FlopCounterMode) -> None:
        super().__init__(traced)
        self.work: dict[fx.Node, float] = {}
        self._counter = counter

    def run_node(self, n: fx.Node) -> object:
        """Run a node, and count its operations."""
        before = self._counter.get_total_flops()
        found = super().run_node(n)
        self.work[n] = float(self._counter.get_total_flops() - before)
        return found


def measure_work(
    traced: fx.GraphModule, inputs: torch.Tensor, nodes: Sequence[fx.Node]
) -> list[float]:
    """Return the floating-point operations of each node; those of cheap nodes are not zero.

    Args:
        traced: the model.
        inputs: samples, [n, ...].
        nodes: its nodes, without placeholders and the output.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        interpreter = _WorkCounter(traced, counter)
        interpreter.run(inputs)
    total = sum(interpreter.work.values()) or 1.0
    return [interpreter.work.get(node, 0.0) + 1e-3 * total / len(nodes) for node in nodes]


def _list_cuts(traced: fx.GraphModule, nodes: Sequence[fx.Node]) -> Iterator[int]:
    """Yield the places before which the model can be divided: one tensor is needed after them."""
    place_of = {node: place for place, node in enumerate(nodes)}
    first_use: dict[object, int] = {}
    joined: set[int] = set()
    for place, node in enumerate(nodes):
        # A module or parameter that is used twice must be in one block.
        if node.op in ("call_module", "get_attr"):
            first = first_use.setdefault(node.target, place)
            joined.update(range(first + 1, place + 1))
    sources = [each for each in traced.graph.nodes if each.op == "placeholder"]
    last_use = {
        node: max((place_of.get(user, len(nodes)) for user in node.users), default=-1)
        for node in (*sources, *nodes)
    }
    for cut in range(1, len(nodes)):
        if cut in joined or any(last_use[each] >= cut for each in sources):
            continue
        needed = [node for node in nodes[:cut] if last_use[node] >= cut]
        if needed == [nodes[cut - 1]] and needed[0].op != "get_attr":
            yield cut


def choose_cuts(work: Sequence[float], cuts: Sequence[int], most: int) -> list[int]:
    """Choose places so that the parts have about equal work.

    Args:
        work: operations of each node, in order.
        cuts: places that can be chosen, ascending; a place is the number of nodes before it.
        most: largest number of parts.
    """
    chosen: list[int] = []
    for cut in cuts:
        left = sum(work[cut:])
        since = sum(work[chosen[-1] if chosen else 0 : cut])
        # As much as each of the parts that may still come.
        fair = (since + left) / (most - len(chosen))
        if since >= 0.7 * fair and len(chosen) < most - 1:
            chosen.append(cut)
    return chosen
