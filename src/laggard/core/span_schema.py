"""The tables of a run folder: the meaning of a row, and the Arrow schema of each table.

Times are nanoseconds of virtual time on one common clock. Its zero is the first-step barrier.
Spans of one lane never overlap, with two exceptions. Gradient buckets overlap each other and the
backward pass, so they are on `Lane.BUCKETS`. Models that a background thread sends during training
are on `Lane.BACKGROUND`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# Values of the columns `group` and `peer` in spans that have no group or peer.
NO_GROUP = -1
NO_PEER = -1
# Value of `waited_for` in steps that waited for no particular rank.
NOBODY = -1
# A Parquet row group is the smallest part of a table that can be read alone.
ROW_GROUP_ROWS = 1 << 20
# Number of a rank's first steps that are usually slower than its later ones.
WARM_UP_STEPS = 5


class Phase(enum.StrEnum):
    """Activity of a worker; stored as a dictionary column in this order."""

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
    # Later than the others, whose codes in older files stay.
    REHEARSE = "rehearse"

    @property
    def code(self) -> int:
        """Return the index of this phase in the dictionary column."""
        return _CODES[self]


_CODES = {phase: code for code, phase in enumerate(Phase)}

SAMPLE_PHASES = (Phase.FETCH, Phase.REHEARSE)
"""Phases in which a worker gets new samples from its drive, or old ones from buffers."""

COMPUTE_PHASES = (Phase.PREP, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)


class Lane(enum.IntEnum):
    """Lanes of one rank."""

    MAIN = 0
    BUCKETS = 1
    BACKGROUND = 2


class Flag(enum.IntFlag):
    """Bits of the `flags` column.

    A communication on the main lane that is asynchronous is a post: its rank does not wait, and
    the communication whose `group` is greater by 1 waits for it, as a receiver for its sender.
    """

    NONE = 0
    ASYNC = 1
    WARM_UP = 2
    CLOCK_SUSPECT = 4
    TRUNCATED = 8


def span_schema() -> pa.Schema:
    """Return the schema of `spans.parquet`, sorted by step, rank and start."""
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
    """Return the schema of `steps.parquet`, which has one row per rank and step.

    `accuracy` is null if the step was not evaluated. `samples` is the number of samples that
    entered the model, `dropped` the number of samples that were computed but discarded. `skipped`
    is the number of steps that the rank left out before this one.

    Versions count the updates of a model that the ranks share. `read_version` is the version that
    the rank read, `applied_version` the version that contains this rank's update, and `staleness`
    the number of updates by other ranks in between; -1 if there is none. Ranks that average their
    models in the background count the versions of their own model, which the averages update too.
    If ranks share no model, `staleness` is the age in steps of the oldest model that a rank took
    from others, or of its own gradient.

    `waited_for` is the rank that this one waited for; -1 if it waited for no particular rank.
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
    """Return the schema of `hosts.parquet`, which has one row per rank."""
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
    """Return the schema of `links.parquet`, which has one row per sample and TCP connection.

    All values are measured by the sending host's kernel.
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
    """Return the schema of `events.parquet`: injected changes, which the analysis never reads.

    Times are seconds after the first-step barrier.
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
