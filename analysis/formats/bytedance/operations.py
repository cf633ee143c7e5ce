"""Operations of a training as ByteDance's StragglerAnalysis records them.

A table has one row for each operation of a worker in a step. The columns and types of operation
are those in the readme of the published artifact
(https://github.com/ByteDance-Seed/StragglerAnalysis).
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.columns import BoolArray, Columns, FloatArray, IntArray


class OpType(enum.StrEnum):
    """Types of operation; columns hold their position in this order."""

    FORWARD = "forward-compute"
    BACKWARD = "backward-compute"
    GRADS_REDUCE_SCATTER = "grads-reduce-scatter"
    LAYERNORM_ALL_REDUCE = "layernorm-grads-all-reduce"
    EMBEDDING_ALL_REDUCE = "embedding-grads-all-reduce"
    SEPARATE_ALL_REDUCE = "separate-grads-all-reduce"
    CLIP = "optimizer-clip-main-grad"
    OPTIMIZER = "optimizer"
    PARAMS_ALL_GATHER = "params-all-gather"
    GC = "gc"
    FORWARD_SEND = "forward-send"
    FORWARD_RECV = "forward-recv"
    BACKWARD_SEND = "backward-send"
    BACKWARD_RECV = "backward-recv"

    @property
    def code(self) -> int:
        """Return the position in the order of types."""
        return _CODES[self]


_CODES = {optype: code for code, optype in enumerate(OpType)}

COMPUTE_TYPES = (OpType.FORWARD, OpType.BACKWARD)
PIPELINE_TRANSFER_TYPES = (
    OpType.FORWARD_SEND,
    OpType.FORWARD_RECV,
    OpType.BACKWARD_SEND,
    OpType.BACKWARD_RECV,
)
"""Point-to-point transfers between two stages of a pipeline."""
RECEIVES: Mapping[OpType, tuple[OpType, int]] = {
    OpType.FORWARD_SEND: (OpType.FORWARD_RECV, 1),
    OpType.BACKWARD_SEND: (OpType.BACKWARD_RECV, -1),
}
"""Type of the receive that belongs to each type of send, and the distance of its stage."""
DATA_PARALLEL_TYPES = (
    OpType.PARAMS_ALL_GATHER,
    OpType.GRADS_REDUCE_SCATTER,
    OpType.SEPARATE_ALL_REDUCE,
)
"""Collectives of all workers that hold the same stage."""
COMMUNICATION_TYPES = (
    *PIPELINE_TRANSFER_TYPES,
    *DATA_PARALLEL_TYPES,
    OpType.LAYERNORM_ALL_REDUCE,
    OpType.EMBEDDING_ALL_REDUCE,
    OpType.CLIP,
)
"""Types that count as communication; the others are compute."""


@dataclass(frozen=True)
class Operations(Columns):
    """Operations, sorted by step, rank and start; -1 means absent.

    `dp_rank` and `stage` locate a worker, and `rank` is its number in the whole job. `start_s` and
    `duration_s` are seconds; starts may count from the start of each step. `seq_id` numbers a
    worker's operations of one type in a step. `mc` and `gmc` are the chunk of the model, and
    `mb_id` is the microbatch.
    """

    dp_rank: IntArray
    stage: IntArray
    rank: IntArray
    step: IntArray
    optype: IntArray
    start_s: FloatArray
    duration_s: FloatArray
    seq_id: IntArray
    mc: IntArray
    mb_id: IntArray
    gmc: IntArray

    @property
    def end_s(self) -> FloatArray:
        """Return the end of every operation, in seconds."""
        ends: FloatArray = self.start_s + self.duration_s
        return ends

    @property
    def is_pipelined(self) -> bool:
        """Return True if the model is split into stages."""
        return bool(len(self)) and int(self.stage.max()) > 0

    @property
    def is_interleaved(self) -> bool:
        """Return True if a stage has several chunks of the model, a virtual pipeline."""
        return bool((self.mc > 0).any())

    def mask_types(self, *optypes: OpType) -> BoolArray:
        """Return a mask of the rows that have one of these types, [N]."""
        return np.isin(self.optype, [optype.code for optype in optypes])

    def to_sorted(self) -> Operations:
        """Return the operations sorted by step, rank and start."""
        return self.where(
            np.lexsort((self.optype, self.seq_id, self.start_s, self.rank, self.step))
        )
