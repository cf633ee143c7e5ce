"""Reads a run folder into immutable values; a run that was killed reads as far as it got.

`events.parquet`, the injected truth, is never opened: findings must come from what a real testbed would also record.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from laggard.analysis.columns import Columns, FloatArray, LinkColumns, SpanColumns, StepColumns
from laggard.errors import RunFolderError
from laggard.run_schema import ALARMS, Alarm, Decision, FidelityCheck, Record, RunRecord, settled
from laggard.span_schema import Phase, host_schema, link_schema, span_schema, step_schema

if TYPE_CHECKING:
    import pyarrow as pa

_C = TypeVar("_C", bound=Columns)
_R = TypeVar("_R", bound=Record)
_LATER_COLUMNS = ("read_version", "applied_version", "waited_for")
_PHASE_CODES = {phase.value: phase.code for phase in Phase}


@dataclass(frozen=True)
class RankHost:
    """Where one rank ran (a row of `hosts.parquet`).

    `cpu_share` is for display: findings never read it.
    """

    rank: int
    host: str
    address: str
    tier: str
    device_class: str
    cpu_share: float
    clock_offset_ns: int
    clock_error_ns: int


@dataclass(frozen=True)
class Run:
    """A run folder's contents.

    Attributes:
        folder: where it was read from.
        record: `run.json`, or None when the run died before writing it.
        hosts: one entry per rank, in rank order.
        spans: every span, sorted by step, rank, start.
        steps: per rank and step.
        links: TCP samples; may be empty.
        fidelity: what the emulation gave; empty when it was never measured.
        decisions: what the strategy decided meanwhile.
        alarms: what was told of slow workers while the run went on, each as it was told of last.
    """

    folder: Path
    record: RunRecord | None
    hosts: tuple[RankHost, ...]
    spans: SpanColumns
    steps: StepColumns
    links: LinkColumns
    fidelity: tuple[FidelityCheck, ...]
    decisions: tuple[Decision, ...] = ()
    alarms: tuple[Alarm, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.hosts)

    @property
    def lockstep(self) -> bool:
        """Whether all ranks took the same steps, to the end."""
        record = self.record
        if record is None:
            return True
        replayable = record.origin is None or record.origin.replayable
        return replayable and record.strategy.pace == "lockstep" and not record.lost_ranks and not record.churn


def load_run(path: Path) -> Run:
    """Reads a run folder.

    Args:
        path: `runs/<scenario>/<run-id>` (a link to it will do).

    Returns:
        The run; tables that a killed run did not get to write are empty.

    Raises:
        RunFolderError: not a run folder, or a file in it is not what its name says.
    """
    folder = path.resolve()
    if not folder.is_dir():
        raise RunFolderError(f"{path}: a run is a folder and this is none; `laggard runs` lists those there are")
    if not any((folder / name).is_file() for name in ("run.json", "spans.parquet")):
        raise RunFolderError(f"{path}: neither run.json nor spans.parquet is in it; give the folder of one run")
    spans = _spans(folder / "spans.parquet")
    return Run(
        folder=folder,
        record=_record(folder / "run.json"),
        hosts=_hosts(folder / "hosts.parquet", spans),
        spans=spans,
        steps=_columns(StepColumns, _table(folder / "steps.parquet", step_schema())),
        links=_columns(LinkColumns, _table(folder / "links.parquet", link_schema())),
        fidelity=_listed(folder / "fidelity.json", FidelityCheck, "fidelity checks"),
        decisions=_listed(folder / "decisions.json", Decision, "decisions"),
        alarms=read_alarms(folder / ALARMS),
    )


def _record(path: Path) -> RunRecord | None:
    if not path.is_file():
        return None
    try:
        return RunRecord.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise RunFolderError(f"{path}: not a run record of this version of Laggard: {error}") from error


def _listed(path: Path, kind: type[_R], told: str) -> tuple[_R, ...]:
    from pydantic import TypeAdapter

    if not path.is_file():
        return ()
    try:
        return TypeAdapter(tuple[kind, ...]).validate_json(path.read_bytes())  # type: ignore[valid-type]
    except ValueError as error:
        raise RunFolderError(f"{path}: not a list of {told}: {error}") from error


def read_alarms(path: Path) -> tuple[Alarm, ...]:
    """The alarms of `alarms.jsonl`, each as it was told of last; none where there is no file. A line cut short by a kill is left out.

    Raises:
        RunFolderError: the file is not what its name says.
    """
    if not path.is_file():
        return ()
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    try:
        told = [Alarm.model_validate_json(line) for line in whole.splitlines()]
    except ValueError as error:
        raise RunFolderError(f"{path}: not lines of alarms: {error}") from error
    return settled(told)


def _table(path: Path, schema: pa.Schema) -> pa.Table:
    """The file's table, cast to `schema`; an empty one where there is no file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not path.is_file():
        return schema.empty_table()
    try:
        return _with_later_columns(pq.read_table(path), schema).select(schema.names).cast(schema)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise RunFolderError(
            f"{path}: not a table with the columns {', '.join(schema.names)} ({error}); collect the run again"
        ) from error


def _with_later_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table of a run from before strategies had versions: it gets columns that say nothing of them."""
    import pyarrow as pa

    for name in _LATER_COLUMNS:
        if name in schema.names and name not in table.column_names:
            table = table.append_column(name, pa.array(np.full(len(table), -1, dtype=np.int32)))
    return table


def _columns(kind: type[_C], table: pa.Table) -> _C:
    return kind(**{field.name: _numpy(table.column(field.name)) for field in fields(kind)})


def _numpy(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    """A column as numpy: integers widened to int64, null floats as NaN, null integers as 0, null text as ''."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        return np.asarray(column.to_numpy(), dtype=np.float64)
    if pa.types.is_string(column.type):
        return np.asarray(pc.fill_null(column, "").to_pylist(), dtype=np.str_)
    filled = pc.fill_null(column, False if pa.types.is_boolean(column.type) else 0)
    values: npt.NDArray[Any] = filled.to_numpy()
    return values if values.dtype == np.bool_ else values.astype(np.int64)


def _spans(path: Path) -> SpanColumns:
    import pyarrow as pa

    table = _table(path, span_schema())
    plain = {name: _numpy(table.column(name)) for name in table.column_names if name != "phase"}
    encoded = table.column("phase").combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0) if encoded.num_chunks else pa.array([], encoded.type)
    names = encoded.dictionary.to_pylist()
    unknown = [name for name in names if name not in _PHASE_CODES]
    if unknown:
        raise RunFolderError(f"{path}: phase {unknown[0]!r} is none of {', '.join(_PHASE_CODES)}")
    codes = np.array([_PHASE_CODES[name] for name in names] or [0], dtype=np.int64)
    phase = codes[np.asarray(encoded.indices.fill_null(0), dtype=np.int64)]
    columns = SpanColumns(phase=phase, **plain)
    return columns.where(np.lexsort((columns.start_ns, columns.rank, columns.step)))


def _hosts(path: Path, spans: SpanColumns) -> tuple[RankHost, ...]:
    """Rows by rank; ranks that left spans but no row are named after themselves."""
    rows = {row["rank"]: RankHost(**row) for row in _table(path, host_schema()).to_pylist()}
    present = range(max([*rows, *spans.rank.tolist()[-1:], *np.unique(spans.rank).tolist()], default=-1) + 1)
    return tuple(rows.get(r, RankHost(r, f"rank {r}", "", "", "", 1.0, 0, 0)) for r in present)


def empty_links() -> LinkColumns:
    """A `links.parquet` without samples."""
    text = np.array([], dtype=np.str_)
    values: dict[str, npt.NDArray[Any]] = {f.name: np.array([], dtype=np.int64) for f in fields(LinkColumns)}
    rates: FloatArray = np.array([], dtype=np.float64)
    values |= {"src": text, "dst": text, "delivery_rate_mbps": rates, "app_limited": np.array([], dtype=np.bool_)}
    return LinkColumns(**values)
