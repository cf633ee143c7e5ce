"""The tables of a run folder as numpy columns: what the analysis computes on, and what figures draw
from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
TextArray = npt.NDArray[np.str_]

_C = TypeVar("_C", bound="Columns")


@dataclass(frozen=True)
class Columns:
    """Equally long columns; subclasses name them and fix their meaning (see
    `laggard.core.span_schema`).
    """

    def __len__(self) -> int:
        first = fields(self)[0]
        return len(getattr(self, first.name))

    def where(self, rows: npt.NDArray[Any] | slice) -> Self:
        """The rows that a mask, a slice or an index array selects, in its order."""
        return self.with_columns(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def with_columns(self, **columns: npt.NDArray[Any]) -> Self:
        """A table of the same kind."""
        return type(self)(**columns)

    def parts(self) -> Iterator[Self]:
        """All rows in order, as many at a time as can well be held; those of one step are
        together.
        """
        yield self

    def first(self, count: int) -> Self:
        """The first rows: so many, if there are, or more."""
        return self.where(np.s_[:count])

    def to_frame(self) -> pd.DataFrame:
        """The same table as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(self.to_dict())

    def to_dict(self) -> Mapping[str, npt.NDArray[Any]]:
        """Column name to array."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class SpanColumns(Columns):
    """`spans.parquet`; `phase` holds `Phase.code`, other columns their stored values widened to
    int64.
    """

    step: IntArray
    rank: IntArray
    lane: IntArray
    phase: IntArray
    seq: IntArray
    start_ns: IntArray
    dur_ns: IntArray
    group: IntArray
    peer: IntArray
    bytes: IntArray
    work: IntArray
    flags: IntArray

    @property
    def end_ns(self) -> IntArray:
        """End of every span."""
        return self.start_ns + self.dur_ns

    @property
    def max_rank(self) -> int:
        """The greatest rank that there is; -1 where there is none."""
        return int(self.rank.max(initial=-1))

    def ordered(self) -> Self:
        """The same by step, rank and start."""
        step, rank, start = np.diff(self.step), np.diff(self.rank), np.diff(self.start_ns)
        follow = (step > 0) | ((step == 0) & ((rank > 0) | ((rank == 0) & (start >= 0))))
        return (
            self if follow.all() else self.where(np.lexsort((self.start_ns, self.rank, self.step)))
        )

    def of_steps(self, first: int, last: int) -> Self:
        """Spans of the steps from the first to the last, both inclusive."""
        return self.where((self.step >= first) & (self.step <= last))

    def overlapping(self, first_ns: float, last_ns: float) -> Self:
        """All spans that reach into a window of time, and perhaps more."""
        return self.where((self.start_ns <= last_ns) & (self.end_ns >= first_ns))


@dataclass(frozen=True)
class StepColumns(Columns):
    """`steps.parquet`; `loss` and `accuracy` are NaN where the table has null."""

    step: IntArray
    rank: IntArray
    start_ns: IntArray
    end_ns: IntArray
    loss: FloatArray
    accuracy: FloatArray
    samples: IntArray
    batch_size: IntArray
    staleness: IntArray
    dropped: IntArray
    skipped: IntArray
    read_version: IntArray
    applied_version: IntArray
    waited_for: IntArray


@dataclass(frozen=True)
class LinkColumns(Columns):
    """`links.parquet`: TCP_INFO samples per connection; counters are cumulative since the
    connection opened.
    """

    time_ns: IntArray
    src: TextArray
    dst: TextArray
    src_port: IntArray
    dst_port: IntArray
    rtt_us: IntArray
    min_rtt_us: IntArray
    delivery_rate_mbps: FloatArray
    app_limited: BoolArray
    last_send_ms: IntArray
    bytes_acked: IntArray
    retransmits: IntArray
    busy_us: IntArray
    rwnd_limited_us: IntArray
    sndbuf_limited_us: IntArray


def concatenate_tables(tables: Sequence[_C]) -> _C:
    """Tables one below the other; one at least."""
    return tables[0].with_columns(
        **{f.name: np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(tables[0])}
    )
