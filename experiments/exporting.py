"""Writes a run for other tools: ui.perfetto.dev, ByteDance's StragglerAnalysis, anything that reads
CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from laggard.errors import InputError

if TYPE_CHECKING:
    from laggard.analysis.load import Run

Export = Literal["perfetto", "bytedance", "csv"]
DEFAULT_NAMES: Mapping[Export, str] = {
    "perfetto": "trace.perfetto.json.gz",
    "bytedance": "trace.bytedance.parquet",
    "csv": "csv",
}


@dataclass(frozen=True)
class Exported:
    """What was written, and what of the run could not be."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def export_run(folder: Path, kind: Export, out: Path | None) -> Exported:
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
    from laggard.analysis.load import load_run

    run = load_run(folder)
    path = out or folder / DEFAULT_NAMES[kind]
    writers: Mapping[Export, Callable[[Run, Path], Exported]] = {
        "perfetto": _perfetto,
        "bytedance": _bytedance,
        "csv": _csv,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return writers[kind](run, path)
    except OSError as error:
        raise InputError(
            f"{error.filename or path}: {error.strerror} — choose another place with --out"
        ) from error


def _perfetto(run: Run, path: Path) -> Exported:
    from laggard.analysis.perfetto import write_perfetto

    written = write_perfetto(run, path)
    return Exported((written.path,), (written.note,) if written.note else ())


def _bytedance(run: Run, path: Path) -> Exported:
    from laggard.analysis.formats.bytedance import write_operations
    from laggard.analysis.formats.run_to_operations import operations_of_run

    meta = write_operations(operations_of_run(run), path)
    gaps = (
        "fetching, preparing and copying samples, checkpoints and evaluation are gaps there: the"
        " format has no operation for them"
    )
    return Exported((path, meta), (gaps,))


def _csv(run: Run, path: Path) -> Exported:
    from laggard.analysis.formats.csv_tables import write_csv

    return Exported(write_csv(run, path))
