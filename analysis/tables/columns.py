"""Columns of a run folder's tables as numpy arrays, the input of analysis and figures."""

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
    """Columns of equal length; subclasses define them (see `laggard.core.span_schema`)."""

    def __len__(self) -> int:
        first = fields(self)[0]
        return len(getattr(self, first.name))

    def where(self, rows: npt.NDArray[Any] | slice) -> Self:
        """Return the rows that a mask, a slice or an index array selects, in its order."""
        if isinstance(rows, np.ndarray) and rows.dtype == np.bool_:
            # Indices select faster than a mask, from the second column on.
            rows = np.flatnonzero(rows)
            if len(rows) == len(self):
                # Tables are not modified, so there is no need for a copy.
                return self
        return self.with_columns(**{f.name: getattr(self, f.name)[rows] for f in fields(self)})

    def with_columns(self, **columns: npt.NDArray[Any]) -> Self:
        """Return a table of the same kind with other columns."""
        return type(self)(**columns)

    def parts(self) -> Iterator[Self]:
        """Yield all rows in order, in parts that fit in memory.

        The rows of one step are always in the same part.
        """
        yield self

    def first(self, count: int) -> Self:
        """Return at least the first `count` rows, or all if there are fewer."""
        return self.where(np.s_[:count])

    def to_frame(self) -> pd.DataFrame:
        """Return the table as a pandas frame."""
        import pandas as pd

        return pd.DataFrame(self.to_dict())

    def to_dict(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return the arrays by column name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}


@dataclass(frozen=True)
class SpanColumns(Columns):
    """Columns of `spans.parquet`.

    `phase` holds `Phase.code`. The other columns hold their stored values, widened to int64.
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
        """Return the end of every span."""
        return self.start_ns + self.dur_ns

    @property
    def max_rank(self) -> int:
        """Return the greatest rank; -1 without spans."""
        return int(self.rank.max(initial=-1))

    def ordered(self) -> Self:
        """Return the rows sorted by step, rank and start."""
        # Stored tables are usually sorted already, and checking is cheaper than sorting.
        step, rank, start = np.diff(self.step), np.diff(self.rank), np.diff(self.start_ns)
        follow = (step > 0) | ((step == 0) & ((rank > 0) | ((rank == 0) & (start >= 0))))
        return (
            self if follow.all() else self.where(np.lexsort((self.start_ns, self.rank, self.step)))
        )

    def of_steps(self, first: int, last: int) -> Self:
        """Return the spans of the steps from first to last, both inclusive."""
        return self.where((self.step >= first) & (self.step <= last))

    def overlapping(self, first_ns: float, last_ns: float) -> Self:
        """Return all spans that overlap a window of time, and possibly others."""
        return self.where((self.start_ns <= last_ns) & (self.end_ns >= first_ns))


@dataclass(frozen=True)
class StepColumns(Columns):
    """Columns of `steps.parquet`; `loss` and `accuracy` are NaN where the table has null."""

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

    @property
    def max_rank(self) -> int:
        """Return the greatest rank; -1 without steps."""
        return int(self.rank.max(initial=-1))


@dataclass(frozen=True)
class LinkColumns(Columns):
    """Columns of `links.parquet`: TCP_INFO samples per connection.

    Counters are cumulative since the connection was opened.
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
    """Concatenate the rows of at least one table."""
    return tables[0].with_columns(
        **{f.name: np.concatenate([getattr(t, f.name) for t in tables]) for f in fields(tables[0])}
    )
