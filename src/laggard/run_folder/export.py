"""Writes a run for other tools: ui.perfetto.dev, ByteDance's StragglerAnalysis, anything that reads
CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laggard.core.errors import InputError

if TYPE_CHECKING:
    from laggard.analysis.tables.load_run import RunData

ExportFormat = Literal["perfetto", "bytedance", "csv"]
DEFAULT_NAMES: Mapping[ExportFormat, str] = {
    "perfetto": "trace.perfetto.json.gz",
    "bytedance": "trace.bytedance.parquet",
    "csv": "csv",
}


@dataclass(frozen=True)
class ExportResult:
    """What was written, and what of the run could not be."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def export_run(folder: Path, kind: ExportFormat, out: Path | None) -> ExportResult:
    """Write a run in another format.

    Args:
        folder: the run folder.
        kind: which format.
        out: the file, or for csv the folder; without it, a name of the format's in the run folder.

    Returns:
        What was written.

    Raises:
        InputError: it is no run folder, the format cannot tell the run, or nothing can be written
            there.
    """
    from laggard.analysis.tables.load_run import load_run

    run = load_run(folder)
    path = out or folder / DEFAULT_NAMES[kind]
    writers: Mapping[ExportFormat, Callable[[RunData, Path], ExportResult]] = {
        "perfetto": _export_perfetto,
        "bytedance": _export_bytedance,
        "csv": _export_csv,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return writers[kind](run, path)
    except OSError as error:
        raise InputError(
            f"{error.filename or path}: {error.strerror} — choose another place with --out"
        ) from error


def _export_perfetto(run: RunData, path: Path) -> ExportResult:
    from laggard.analysis.formats.export.perfetto import write_perfetto

    written = write_perfetto(run, path)
    return ExportResult((written.path,), (written.note,) if written.note else ())


def _export_bytedance(run: RunData, path: Path) -> ExportResult:
    from laggard.analysis.formats.bytedance.from_run import run_to_operations
    from laggard.analysis.formats.bytedance.parquet_file import write_operations

    meta = write_operations(run_to_operations(run), path)
    gaps = (
        "fetching, preparing and copying samples, checkpoints and evaluation are gaps there: the"
        " format has no operation for them"
    )
    return ExportResult((path, meta), (gaps,))


def _export_csv(run: RunData, path: Path) -> ExportResult:
    from laggard.analysis.formats.export.csv_tables import write_csv

    return ExportResult(write_csv(run, path))
