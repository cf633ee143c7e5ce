"""Trace format of ByteDance's Parquet files, for the registry."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.import_run.trace_format import TraceFormat
from laggard.analysis.tables.load_run import RunData


def _is_bytedance(path: Path) -> bool:
    return path.is_file() and path.name.endswith(".parquet")


def _read(path: Path) -> RunData:
    from laggard.analysis.formats.bytedance.parquet_file import read_operations
    from laggard.analysis.formats.bytedance.to_run import operations_to_run

    return operations_to_run(read_operations(path), path)


BYTEDANCE = TraceFormat(
    "bytedance", "a Parquet file with ByteDance's columns", _is_bytedance, _read
)
