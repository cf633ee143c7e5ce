"""Writes a run's values back as a run folder; tests and evaluation make their input with it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.columns import Columns, SpanColumns
from laggard.analysis.load import RankHost, Run
from laggard.span_schema import (
    ROW_GROUP_ROWS,
    Phase,
    host_schema,
    link_schema,
    span_schema,
    step_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa


def write_run(run: Run, folder: Path) -> Path:
    """Writes `run.json`, the four tables and `fidelity.json`.

    Args:
        run: what to write.
        folder: made if it is not there; files in it are replaced.

    Returns:
        The folder.
    """
    import json

    folder.mkdir(parents=True, exist_ok=True)
    if run.record is not None:
        (folder / "run.json").write_text(run.record.model_dump_json(indent=2), encoding="utf-8")
    checks = [check.model_dump() for check in run.fidelity]
    (folder / "fidelity.json").write_text(json.dumps(checks, indent=2), encoding="utf-8")
    _write_parts(
        (span_table(part) for part in run.spans.parts()), span_schema(), folder / "spans.parquet"
    )
    _write_parts(
        (table_of(part, step_schema()) for part in run.steps.parts()),
        step_schema(),
        folder / "steps.parquet",
    )
    _write(table_of(run.links, link_schema()), folder / "links.parquet")
    write_hosts(run.hosts, folder)
    return folder


def write_hosts(hosts: Sequence[RankHost], folder: Path) -> None:
    """Writes `hosts.parquet`."""
    import pyarrow as pa

    _write(
        pa.Table.from_pylist([vars(host) for host in hosts], host_schema()),
        folder / "hosts.parquet",
    )


def _write(table: pa.Table, path: Path) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path, compression="zstd", row_group_size=ROW_GROUP_ROWS)


def _write_parts(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    import pyarrow.parquet as pq

    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for table in tables:
            file.write_table(table, row_group_size=ROW_GROUP_ROWS)


def span_table(spans: SpanColumns) -> pa.Table:
    """Spans as they are stored."""
    import pyarrow as pa

    columns = dict(spans.mapping())
    codes = pa.array(columns.pop("phase").astype(np.int8))
    columns["phase"] = pa.DictionaryArray.from_arrays(codes, pa.array([p.value for p in Phase]))
    schema = span_schema()
    return pa.table(
        [pa.array(columns[n]).cast(schema.field(n).type) for n in schema.names], schema=schema
    )


def table_of(columns: Columns, schema: pa.Schema) -> pa.Table:
    """Other columns as they are stored: what is NaN becomes null."""
    import pyarrow as pa

    values = columns.mapping()
    return pa.table(
        [pa.array(values[n], from_pandas=True).cast(schema.field(n).type) for n in schema.names],
        schema=schema,
    )
