"""Writer of run folders, for tests and evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.analysis.tables.columns import Columns, SpanColumns
from laggard.analysis.tables.load_run import RankHost, RunData
from laggard.core.files.output_files import replace_file, write_json, write_text
from laggard.core.run_schema import FEDERATED_FILE, LEDGER_FILE, STREAM_FILE
from laggard.core.span_schema import (
    ROW_GROUP_ROWS,
    Phase,
    host_schema,
    link_schema,
    span_schema,
    step_schema,
)

if TYPE_CHECKING:
    import pyarrow as pa


def write_run(run: RunData, folder: Path) -> Path:
    """Write `run.json`, the four tables, `fidelity.json`, and decisions, tasks and rounds if any.

    Args:
        run: run to write.
        folder: folder to write to; it is created if missing, and files in it are replaced.

    Returns:
        The folder.

    Examples:
        >>> from laggard.analysis.tables.load_run import load_run
        >>> run = load_run(Path("runs/quickstart/latest"))
        >>> write_run(run, Path("copies/quickstart")).name
        'quickstart'
    """
    folder.mkdir(parents=True, exist_ok=True)
    if run.record is not None:
        write_text(folder / "run.json", run.record.model_dump_json(indent=2))
    write_json(folder / "fidelity.json", [check.model_dump() for check in run.fidelity])
    for name, records in (("decisions.json", run.decisions), (STREAM_FILE, run.stream_tasks)):
        if records:
            write_json(folder / name, [each.model_dump() for each in records])
    if run.federated is not None:
        write_json(folder / FEDERATED_FILE, run.federated.model_dump(mode="json"))
    if run.ledger:
        lines = [entry.model_dump_json() for entry in run.ledger]
        write_text(folder / LEDGER_FILE, "".join(f"{line}\n" for line in lines))
    _write_parts(
        (to_span_table(part) for part in run.spans.parts()), span_schema(), folder / "spans.parquet"
    )
    _write_parts(
        (to_arrow_table(part, step_schema()) for part in run.steps.parts()),
        step_schema(),
        folder / "steps.parquet",
    )
    links = to_arrow_table(run.links, link_schema())
    _write_parts([links], link_schema(), folder / "links.parquet")
    write_hosts(run.hosts, folder)
    return folder


def write_hosts(hosts: Sequence[RankHost], folder: Path) -> None:
    """Write `hosts.parquet`."""
    import pyarrow as pa

    table = pa.Table.from_pylist([vars(host) for host in hosts], host_schema())
    _write_parts([table], host_schema(), folder / "hosts.parquet")


def _write_parts(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    import pyarrow.parquet as pq

    with replace_file(path) as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for table in tables:
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def to_span_table(spans: SpanColumns) -> pa.Table:
    """Convert spans to their stored form."""
    import pyarrow as pa

    columns = dict(spans.to_dict())
    codes = pa.array(columns.pop("phase").astype(np.int8))
    columns["phase"] = pa.DictionaryArray.from_arrays(codes, pa.array([p.value for p in Phase]))
    schema = span_schema()
    return pa.table(
        [pa.array(columns[n]).cast(schema.field(n).type) for n in schema.names], schema=schema
    )


def to_arrow_table(columns: Columns, schema: pa.Schema) -> pa.Table:
    """Convert other columns to their stored form; NaN becomes null."""
    import pyarrow as pa

    values = columns.to_dict()
    return pa.table(
        [pa.array(values[n], from_pandas=True).cast(schema.field(n).type) for n in schema.names],
        schema=schema,
    )
