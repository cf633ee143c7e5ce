"""Registry of the formats that `laggard export` writes, one line each.

A writer is imported only when it is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from laggard.analysis.tables.load_run import RunData


@dataclass(frozen=True)
class ExportResult:
    """Files that were written, and notes on data that the format cannot hold."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


class ExportFormat(NamedTuple):
    """Default name of the file or folder in the run folder, and `module:function` of the writer."""

    default_name: str
    writer: str


_FOLDER = "laggard.analysis.formats.export"
EXPORT_FORMATS: Mapping[str, ExportFormat] = {
    "perfetto": ExportFormat("trace.perfetto.json.gz", f"{_FOLDER}.perfetto:export_perfetto"),
    "bytedance": ExportFormat("trace.bytedance.parquet", f"{_FOLDER}.bytedance:export_bytedance"),
    "csv": ExportFormat("csv", f"{_FOLDER}.csv_tables:export_csv"),
}


def export(run: RunData, name: str, path: Path) -> ExportResult:
    """Write a run to a path in the format of that name."""
    module, _, function = EXPORT_FORMATS[name].writer.partition(":")
    result = getattr(importlib.import_module(module), function)(run, path)
    assert isinstance(result, ExportResult)
    return result
