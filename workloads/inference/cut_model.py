"""A network in blocks, between any two of which it can be cut, also where several tensors pass.

Its operations are those that torch.fx traces. They are put in an order in which the best cuts of
the graph, for slow links and fast ones, have all their operations before all others. So
enumerating the cuts of this order finds them. All nodes of a run find the same order, since it
follows from counts of operations and not from measured times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx, nn

from laggard.core.serving.graph_cut import NetworkOperation, find_best_cut
from laggard.workloads.planning.split_model import (
    TRACE_ERRORS,
    choose_cuts,
    measure_work,
    split_model,
)

MOST_BLOCKS = 12
_FLOPS = 2e10
"""Floating-point operations of a core in a second, for the order only."""

_RATES_MBPS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""Rates of links for which the best cut is looked for."""

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class CutModel:
    """Network in blocks.

    Attributes:
        blocks: modules, each of which gets the tensors that the one before has returned.
    """

    blocks: tuple[nn.Module, ...]

    def compute(self, number: int, values: Tensors) -> Tensors:
        """Return the output of a block: the tensors that later blocks need."""
        found = self.blocks[number](*values)
        return found if isinstance(found, tuple) else (found,)


def cut_model(
    model: nn.Module, inputs: torch.Tensor, device_share: float, server_share: float
) -> CutModel:
    """Divide a model into blocks.

    Args:
        model: the model, in evaluation mode.
        inputs: samples, [n, ...]; at least two.
        device_share: share of a core that devices typically have.
        server_share: share of a core of the server.

    Raises:
        InputError: the model does not return one tensor.
    """
    chain = split_model(model, inputs, MOST_BLOCKS)
    try:
        traced = fx.symbolic_trace(model)
    except TRACE_ERRORS:
        return CutModel(chain.blocks)
    graph = _OperationGraph(traced, inputs)
    order, best = graph.order(device_share, server_share)
    possible = [cut for cut in range(1, len(order)) if graph.can_pass(order, cut)]
    # A border is also a place where another request can overtake: there are enough of them where
    # one tensor passes, if there are any.
    single = [cut for cut in possible if graph.count_passing(order, cut) == 1]
    work = [graph.work[each] for each in order]
    chosen = choose_cuts(work, single or possible, MOST_BLOCKS)
    cuts = sorted({*chosen, *graph.list_narrow(order, possible), *(best & {*possible})})
    bounds = [0, *cuts, len(order)]
    return CutModel(
        tuple(graph.build_block(order, first, last) for first, last in pairwise(bounds))
    )


class _OperationGraph:
    """Operations of a traced model, with their work and their outputs.

    Args:
        traced: the model.
        inputs: samples, [n, ...].
    """

    def __init__(self, traced: fx.GraphModule, inputs: torch.Tensor) -> None:
        self._traced = traced
        self._nodes = [
            each
            for each in traced.graph.nodes
            if each.op not in ("placeholder", "output", "get_attr")
        ]
        self._sample = next(each for each in traced.graph.nodes if each.op == "placeholder")
        (self._output,) = next(
            each for each in traced.graph.nodes if each.op == "output"
        ).all_input_nodes
        self._samples = len(inputs)
        self._sample_bytes = inputs.nbytes
        self.work = dict(zip(self._nodes, measure_work(traced, inputs, self._nodes), strict=True))
        recorder = _OutputRecorder(traced)
        with torch.no_grad():
            recorder.run(inputs)
        self._outputs = recorder.outputs

    def order(self, device_share: float, server_share: float) -> tuple[list[fx.Node], set[int]]:
        """Return the operations in order, and the places of the best cuts."""
        numbers = {node: number for number, node in enumerate(self._nodes)}
        operations = [
            NetworkOperation(
                self.work[node] / _FLOPS / device_share,
                self.work[node] / _FLOPS / server_share,
                float(self._count_bytes(node)),
                tuple(numbers[each] for each in node.all_input_nodes if each in numbers),
                self._sample in node.all_input_nodes,
            )
            for node in self._nodes
        ]
        cuts = [find_best_cut(operations, self._sample_bytes, 8e-6 / rate) for rate in _RATES_MBPS]
        # What an operation needs is in every cut that it is in, so it comes first.
        order = sorted(
            self._nodes,
            key=lambda node: (-sum(numbers[node] in cut for cut in cuts), numbers[node]),
        )
        return order, {len(cut) for cut in cuts}

    def can_pass(self, order: Sequence[fx.Node], cut: int) -> bool:
        """Return whether all values that pass at a place are tensors of floats."""
        return all(
            self._outputs.get(node, _NO_TENSOR).is_floating_point()
            for node in self._list_passing(order, cut)
        )

    def count_passing(self, order: Sequence[fx.Node], cut: int) -> int:
        """Return the number of values that pass at a place."""
        return len(self._list_passing(order, cut))

    def list_narrow(self, order: Sequence[fx.Node], possible: Sequence[int]) -> list[int]:
        """Return the places at which fewer bytes pass than at any one before.

        A server is faster than a device, so no other place is worth a cut.
        """
        narrow, fewest = [], self._sample_bytes
        for cut in possible:
            passing = sum(map(self._count_bytes, self._list_passing(order, cut)))
            if passing < fewest:
                narrow.append(cut)
                fewest = passing
        return narrow

    def build_block(self, order: Sequence[fx.Node], first: int, last: int) -> fx.GraphModule:
        """Return a module of some operations in order."""
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in self._list_passing(order, first):
            copies[node] = graph.placeholder(f"value_{len(copies)}")

        def copy(node: fx.Node) -> fx.Node:
            if node not in copies and node.op == "get_attr":
                copies[node] = graph.node_copy(node)
            return copies[node]

        for node in order[first:last]:
            copies[node] = graph.node_copy(node, copy)
        passing = self._list_passing(order, last)
        graph.output(tuple(copies[each] for each in passing))
        return fx.GraphModule(self._traced, graph)

    def _list_passing(self, order: Sequence[fx.Node], cut: int) -> list[fx.Node]:
        """Return the values before a place that are needed after it."""
        if cut == 0:
            return [self._sample]
        after = {*order[cut:]}
        return [
            node
            for node in (self._sample, *order[:cut])
            if not after.isdisjoint(node.users) or (node is self._output)
        ]

    def _count_bytes(self, node: fx.Node) -> int:
        return self._outputs[node].nbytes if node in self._outputs else 0


class _OutputRecorder(fx.Interpreter):
    """Interpreter that keeps the shape of every tensor."""

    def __init__(self, traced: fx.GraphModule) -> None:
        super().__init__(traced)
        self.outputs: dict[fx.Node, torch.Tensor] = {}

    def run_node(self, n: fx.Node) -> object:
        """Run a node, and keep the shape of its output."""
        found = super().run_node(n)
        if isinstance(found, torch.Tensor):
            self.outputs[n] = found.to("meta")
        return found


_NO_TENSOR = torch.zeros(0, dtype=torch.int64)
