"""The tables of a run folder: what one row of each means, and the Arrow schema it is stored in.

Times are nanoseconds of virtual time on one common clock whose zero is the first-step barrier.
Spans of one lane never overlap, but for two: gradient buckets overlap each other and the backward
pass and live on `Lane.BUCKETS`, and models that a thread sends beside the training on
`Lane.BACKGROUND`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

NO_GROUP = -1
NO_PEER = -1
ROW_GROUP_ROWS = 1 << 20


class Phase(enum.StrEnum):
    """What a worker was doing; stored as a dictionary column in this order."""

    FETCH = "fetch"
    PREP = "prep"
    H2D = "h2d"
    FORWARD = "forward"
    BACKWARD = "backward"
    COMM = "comm"
    OPTIMIZER = "optimizer"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    OTHER = "other"

    @property
    def code(self) -> int:
        """Index of this phase in the dictionary column."""
        return _CODES[self]


_CODES = {phase: code for code, phase in enumerate(Phase)}

COMPUTE_PHASES = (Phase.PREP, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class Lane(enum.IntEnum):
    """Lanes of one rank."""

    MAIN = 0
    BUCKETS = 1
    BACKGROUND = 2


class Flag(enum.IntFlag):
    """Bits of the `flags` column."""

    NONE = 0
    ASYNC = 1
    WARM_UP = 2
    CLOCK_SUSPECT = 4
    TRUNCATED = 8


def span_schema() -> pa.Schema:
    """Schema of `spans.parquet`, sorted by step, rank, start."""
    import pyarrow as pa

    return pa.schema(
        [
            ("step", pa.int32()),
            ("rank", pa.int32()),
            ("lane", pa.int8()),
            ("phase", pa.dictionary(pa.int8(), pa.string())),
            ("seq", pa.int16()),
            ("start_ns", pa.int64()),
            ("dur_ns", pa.int64()),
            ("group", pa.int32()),
            ("peer", pa.int32()),
            ("bytes", pa.int64()),
            ("work", pa.int32()),
            ("flags", pa.uint8()),
        ]
    )


def step_schema() -> pa.Schema:
    """Schema of `steps.parquet`: one row per rank and step; `accuracy` is null where nothing was
    evaluated.

    `samples` were learnt from and `dropped` ones computed in vain; `skipped` are steps that the
    rank left out before this one. Versions count the updates of a model that the ranks share: the
    one read, the one that this rank's update went into, and between them `staleness` updates by
    others; -1 where there is none. (Ranks that average their models beside the training count the
    versions of their own, which the averages update too.) Where ranks share no model, `staleness`
    is by how many steps the oldest model was behind that a rank took from others, or its own
    gradient. `waited_for` is the rank that this one waited for, -1 where it was nobody in
    particular.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("step", pa.int32()),
            ("rank", pa.int32()),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("loss", pa.float64()),
            ("accuracy", pa.float64()),
            ("samples", pa.int32()),
            ("batch_size", pa.int32()),
            ("staleness", pa.int32()),
            ("dropped", pa.int32()),
            ("skipped", pa.int32()),
            ("read_version", pa.int32()),
            ("applied_version", pa.int32()),
            ("waited_for", pa.int32()),
        ]
    )


def host_schema() -> pa.Schema:
    """Schema of `hosts.parquet`: one row per rank."""
    import pyarrow as pa

    return pa.schema(
        [
            ("rank", pa.int32()),
            ("host", pa.string()),
            ("address", pa.string()),
            ("tier", pa.string()),
            ("device_class", pa.string()),
            ("cpu_share", pa.float64()),
            ("clock_offset_ns", pa.int64()),
            ("clock_error_ns", pa.int64()),
        ]
    )


def link_schema() -> pa.Schema:
    """Schema of `links.parquet`: one row per sample and TCP connection, as the sending kernel saw
    it.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("time_ns", pa.int64()),
            ("src", pa.string()),
            ("dst", pa.string()),
            ("src_port", pa.int32()),
            ("dst_port", pa.int32()),
            ("rtt_us", pa.int64()),
            ("min_rtt_us", pa.int64()),
            ("delivery_rate_mbps", pa.float64()),
            ("app_limited", pa.bool_()),
            ("last_send_ms", pa.int64()),
            ("bytes_acked", pa.int64()),
            ("retransmits", pa.int64()),
            ("busy_us", pa.int64()),
            ("rwnd_limited_us", pa.int64()),
            ("sndbuf_limited_us", pa.int64()),
        ]
    )


def event_schema() -> pa.Schema:
    """Schema of `events.parquet`: injected changes, in seconds after the first-step barrier; never
    read by the analysis.
    """
    import pyarrow as pa

    return pa.schema(
        [
            ("kind", pa.string()),
            ("src", pa.string()),
            ("dst", pa.string()),
            ("quantity", pa.string()),
            ("value", pa.float64()),
            ("requested_s", pa.float64()),
            ("effective_s", pa.float64()),
        ]
    )
