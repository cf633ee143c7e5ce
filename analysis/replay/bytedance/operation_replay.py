"""Replay of operations by the dependencies of data-parallel training, without launch gaps.

The dependencies are those of J. Lin et al., Understanding Stragglers in Large Model Training Using
What-if Analysis (OSDI 2025), section 3:

- An operation begins when all operations that it depends on have ended. A collective, or a send
  with its receive, ends one transfer after its last member began.
- Compute follows compute, and each kind of send or receive follows its own kind, in the order of
  their starts.
- Compute waits for its receive, a receive for the previous compute, and a send for its compute.
- The first forward waits for the all-gather of the parameters. The last backward is followed by
  the reductions of the gradients, the clipping, and the optimizer.

All steps and data-parallel ranks share the dependencies, which are read from the first and
evaluated for all at once. Pipeline stages are supported, but stages of several chunks (virtual
pipelines) are refused. Shapes use S steps, D data-parallel ranks, and N operations per step and
data-parallel rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np

from laggard.analysis.formats.bytedance.operations import (
    COMPUTE_TYPES,
    DATA_PARALLEL_TYPES,
    PIPELINE_TRANSFER_TYPES,
    RECEIVES,
    Operations,
    OpType,
)
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.core.errors import RunFolderError

_TOLERANCE_S = 5e-5
"""Largest clock difference of neighboring stages, in seconds. A transfer that starts or ends
farther outside the computes of its step belongs to none of them."""
_CLOCK_FAULT_S = 1e-2
"""Clock error in seconds. A transfer that ends this long before its last member began counts as
0."""
_OPTYPES = tuple(OpType)
_OF_COMPUTE = {
    OpType.FORWARD: (OpType.FORWARD_RECV, OpType.FORWARD_SEND),
    OpType.BACKWARD: (OpType.BACKWARD_RECV, OpType.BACKWARD_SEND),
}


@dataclass(frozen=True)
class OperationNode:
    """One operation of every step and data-parallel rank.

    `start_s`, `end_s` and `chunk` are those of the first step and data-parallel rank.
    """

    optype: OpType
    seq: int
    stage: int
    start_s: float
    end_s: float
    chunk: int


@dataclass(frozen=True)
class OperationDependencies:
    """Dependencies between the operations of a step.

    Attributes:
        nodes: operations of one step and data-parallel rank, [N].
        rows: rows of the operations in the table, [N, S, D].
        after: for each node, the nodes that it begins after.
        units: groups of nodes that end together, in topological order.
        is_synchronized: for each unit, True if its members wait for each other; otherwise the unit
            is a single operation.
        is_global: for each unit, True if its members also wait for those of all data-parallel
            ranks.
    """

    nodes: tuple[OperationNode, ...]
    rows: IntArray
    after: tuple[tuple[int, ...], ...]
    units: tuple[tuple[int, ...], ...]
    is_synchronized: tuple[bool, ...]
    is_global: tuple[bool, ...]

    def durations(self, operations: Operations) -> FloatArray:
        """Return each operation's duration without waiting, [N, S, D] seconds.

        Compute has its own duration; a synchronized operation has its transfer after the last
        arrival.
        """
        taken = operations.duration_s[self.rows].copy()
        starts, ends = operations.start_s[self.rows], operations.end_s[self.rows]
        for unit, is_synchronized, is_global in zip(
            self.units, self.is_synchronized, self.is_global, strict=True
        ):
            if not is_synchronized:
                continue
            members = list(unit)
            latest = starts[members].max(axis=0)
            if is_global:
                latest = np.broadcast_to(latest.max(axis=1, keepdims=True), latest.shape)
            transfer = ends[members] - latest
            taken[members] = np.where(transfer <= -_CLOCK_FAULT_S, 0.0, transfer)
        return taken

    def step_seconds(self, taken: FloatArray) -> FloatArray:
        """Return the length of each step with these durations, [S] seconds.

        A step lasts from the moment at which all ranks may begin to the end of the last optimizer.

        Args:
            taken: seconds of each operation, [N, S, D].
        """
        ends = np.zeros_like(taken)
        nothing = np.zeros(taken.shape[1:])
        for unit, is_synchronized, is_global in zip(
            self.units, self.is_synchronized, self.is_global, strict=True
        ):
            begins = [
                np.max([ends[node] for node in self.after[member]] or [nothing], axis=0)
                for member in unit
            ]
            if is_synchronized:
                latest = np.max(begins, axis=0)
                latest = latest.max(axis=1, keepdims=True) if is_global else latest
                begins = [latest] * len(unit)
            for member, begin in zip(unit, begins, strict=True):
                ends[member] = begin + taken[member]
        # Units are in topological order, so all ends that a unit needs are known.
        last = [n for n, node in enumerate(self.nodes) if node.optype is OpType.OPTIMIZER]
        seconds: FloatArray = ends[last].max(axis=(0, 2))
        return seconds


def read_dependencies(operations: Operations) -> OperationDependencies:
    """Return the dependencies of a table of operations.

    Raises:
        RunFolderError: the dependencies cannot be derived from the table.
    """
    nodes, rows = _build_nodes(operations)
    place = {(node.optype, node.seq, node.stage): n for n, node in enumerate(nodes)}
    stages = int(operations.stage.max()) + 1
    parallel = any(node.optype in DATA_PARALLEL_TYPES for node in nodes)
    after: list[list[int]] = [[] for _ in nodes]
    for stage in range(stages):
        own = _PipelineStage(
            nodes, [n for n, node in enumerate(nodes) if node.stage == stage], after, stage
        )
        own.chain_compute()
        own.join_links()
        if parallel:
            own.join_data_parallel()
        own.chain_end(parallel=parallel)
    return _sort_nodes(nodes, rows, after, _group_nodes(nodes, place))


def _build_nodes(operations: Operations) -> tuple[tuple[OperationNode, ...], IntArray]:
    """Return the operations of the first step and data-parallel rank, with the rows of each."""
    if operations.is_interleaved:
        raise RunFolderError(
            "the trace has stages of several chunks (mc > 0, a virtual pipeline), which cannot be"
            " replayed — use a trace with one chunk per stage"
        )
    steps, step = np.unique(operations.step, return_inverse=True)
    dp_ranks = int(operations.dp_rank.max()) + 1
    keys = np.column_stack([operations.optype, operations.seq_id, operations.stage])
    unique, index = np.unique(keys, axis=0, return_inverse=True)
    rows = np.full((len(unique), len(steps), dp_ranks), -1, dtype=np.int64)
    rows[index.ravel(), step, operations.dp_rank] = np.arange(len(operations))
    gaps = np.argwhere(rows < 0)
    if len(gaps):
        node, gap_step, dp = gaps[0].tolist()
        optype, seq, stage = unique[node].tolist()
        operation_name = f"{_OPTYPES[optype].value} {seq} of stage {stage}"
        raise RunFolderError(
            f"step {steps[gap_step]}, dp_rank {dp} has no {operation_name}, and others have — "
            "remove the steps in which workers have different operations"
        )
    first = operations.where(rows[:, 0, 0])
    columns = (first.optype, first.seq_id, first.stage, first.start_s, first.end_s, first.mc)
    values = zip(*(column.tolist() for column in columns), strict=True)
    return (
        tuple(
            OperationNode(_OPTYPES[code], seq, stage, start, end, mc)
            for code, seq, stage, start, end, mc in values
        ),
        rows,
    )


@dataclass(frozen=True)
class _PipelineStage:
    """One stage of the first data-parallel rank; its methods write dependencies into `after`."""

    nodes: Sequence[OperationNode]
    own: Sequence[int]
    after: list[list[int]]
    stage: int

    def find_operations(self, *optypes: OpType) -> list[int]:
        """Return the stage's operations of these types, in the order of their starts."""
        found = [n for n in self.own if self.nodes[n].optype in optypes]
        return sorted(
            found,
            key=lambda n: (self.nodes[n].start_s, self.nodes[n].seq, self.nodes[n].optype.value),
        )

    def chain(self, nodes: Sequence[int]) -> None:
        """Make each node begin after the one before it."""
        for before, node in pairwise(nodes):
            self.after[node].append(before)

    def chain_compute(self) -> None:
        """Chain compute with compute, and each kind of send or receive with its own kind."""
        self.chain(self.find_operations(*COMPUTE_TYPES))
        for optype in PIPELINE_TRANSFER_TYPES:
            self.chain(self.find_operations(optype))

    def join_links(self) -> None:
        """Make each compute wait for its receive, and each send for its compute."""
        for compute, (receive, send) in _OF_COMPUTE.items():
            computes = self.find_operations(compute)
            if not computes:
                raise RunFolderError(
                    f"stage {self.stage} has no {compute.value} in the first step — use a trace"
                    " of complete steps"
                )
            begun = max(self.nodes[n].start_s for n in computes) + _TOLERANCE_S
            done = min(self.nodes[n].end_s for n in computes) - _TOLERANCE_S
            receives = [n for n in self.find_operations(receive) if self.nodes[n].start_s <= begun]
            sends = [n for n in self.find_operations(send) if self.nodes[n].end_s >= done]
            for links, optype in ((receives, receive), (sends, send)):
                if links and len(links) != len(computes):
                    raise RunFolderError(
                        f"stage {self.stage} has {len(links)} {optype.value} for {len(computes)}"
                        f" {compute.value} in the first step, so they cannot be paired — use a"
                        " pipeline without interleaved chunks"
                    )
            # The k-th receive feeds the k-th compute and may start once the compute before it has
            # ended; the slice is empty for the first.
            for number, node in enumerate(receives):
                self.after[computes[number]].append(node)
                self.after[node] += computes[number - 1 : number]
            for number, node in enumerate(sends):
                self.after[node].append(computes[number])
        self._join_first_backward()

    def _join_first_backward(self) -> None:
        """Delay the first exchange of the backward passes until the last forward but one ends."""
        computes = self.find_operations(*COMPUTE_TYPES)
        first = next(
            n for n, node in enumerate(computes) if self.nodes[node].optype is OpType.BACKWARD
        )
        if first >= 2:
            for optype in (OpType.BACKWARD_RECV, OpType.BACKWARD_SEND):
                for node in self.find_operations(optype)[:1]:
                    self.after[node].append(computes[first - 2])

    def join_data_parallel(self) -> None:
        """Delay the first forward until the parameters arrive.

        Overlapped reductions wait for the last backward.
        """
        gathers, reductions = (
            self.find_operations(OpType.PARAMS_ALL_GATHER),
            self.find_operations(OpType.GRADS_REDUCE_SCATTER),
        )
        self.chain(self.find_operations(OpType.PARAMS_ALL_GATHER, OpType.GRADS_REDUCE_SCATTER))
        if gathers:
            self.after[self.find_operations(OpType.FORWARD)[0]].append(gathers[-1])
        if reductions and self.find_operations(OpType.SEPARATE_ALL_REDUCE):
            last = max(self.find_operations(OpType.BACKWARD), key=lambda n: self.nodes[n].end_s)
            self.after[reductions[0]].append(last)

    def chain_end(self, *, parallel: bool) -> None:
        """Chain the operations between the last backward and the optimizer."""
        collect = self.find_operations(OpType.GC)
        embedding = self.find_operations(OpType.EMBEDDING_ALL_REDUCE)
        reductions, separate = (
            self.find_operations(OpType.GRADS_REDUCE_SCATTER),
            self.find_operations(OpType.SEPARATE_ALL_REDUCE),
        )
        last = max(self.find_operations(*COMPUTE_TYPES), key=lambda n: self.nodes[n].end_s)
        between = separate or (reductions if parallel else [])
        ending = [
            *self.find_operations(OpType.LAYERNORM_ALL_REDUCE),
            *embedding,
            *between,
            *self.find_operations(OpType.CLIP),
            *self.find_operations(OpType.OPTIMIZER),
        ]
        if not self.find_operations(OpType.OPTIMIZER):
            raise RunFolderError(
                f"stage {self.stage} has no optimizer in the first step — use a trace of complete"
                " steps"
            )
        self.chain([last, *collect, *ending])
        if separate:
            self.after[ending[0]] += reductions[-1:]


def _group_nodes(
    nodes: Sequence[OperationNode], place: Mapping[tuple[OpType, int, int], int]
) -> dict[tuple[int, ...], bool]:
    """Return groups of nodes that wait for each other.

    A group maps to True if its members also wait for those of all data-parallel ranks.
    """
    groups: dict[tuple[int, ...], bool] = {}
    paired: set[int] = set()
    for node in nodes:
        if node.optype in RECEIVES:
            receive, towards = RECEIVES[node.optype]
            other = place.get((receive, node.seq, node.stage + towards))
            if other is not None:
                pair = (place[node.optype, node.seq, node.stage], other)
                groups[pair] = False
                paired.update(pair)
    for n, node in enumerate(nodes):
        if node.optype in PIPELINE_TRANSFER_TYPES and n not in paired:
            groups[(n,)] = False
        elif node.optype in DATA_PARALLEL_TYPES:
            groups[(n,)] = True
    embedding = tuple(
        n for n, node in enumerate(nodes) if node.optype is OpType.EMBEDDING_ALL_REDUCE
    )
    clip = tuple(n for n, node in enumerate(nodes) if node.optype is OpType.CLIP)
    return groups | ({embedding: False} if embedding else {}) | ({clip: True} if clip else {})


def _sort_nodes(
    nodes: tuple[OperationNode, ...],
    rows: IntArray,
    after: list[list[int]],
    groups: Mapping[tuple[int, ...], bool],
) -> OperationDependencies:
    """Contract groups of nodes to units, sort the units topologically, and build the dependencies.

    Raises:
        RunFolderError: the operations wait for each other in a cycle.
    """
    # Nodes that wait for each other start together and are sorted as one; otherwise a send and its
    # receive would depend on each other.
    unit_of = {n: group for group in groups for n in group}
    units = {unit_of.get(n, (n,)) for n in range(len(nodes))}
    sorter = TopologicalSorter(
        {
            unit: {unit_of.get(before, (before,)) for n in unit for before in after[n]} - {unit}
            for unit in units
        }
    )
    try:
        order = tuple(sorter.static_order())
    except CycleError as error:
        raise RunFolderError(
            "operations wait for each other in a cycle: no training can start them in this order —"
            " check the start times in the trace"
        ) from error
    return OperationDependencies(
        nodes=nodes,
        rows=rows,
        after=tuple(tuple(own) for own in after),
        units=order,
        is_synchronized=tuple(unit in groups for unit in order),
        is_global=tuple(groups.get(unit, False) for unit in order),
    )
