"""Export of a run for other tools: ui.perfetto.dev, ByteDance's StragglerAnalysis, CSV readers."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.export.registry import EXPORT_FORMATS, ExportResult, export
from laggard.core.errors import InputError


def export_run(folder: Path, name: str, out: Path | None) -> ExportResult:
    """Write a run in another format.

    Args:
        folder: run folder.
        name: name of the format, one of `EXPORT_FORMATS`.
        out: file, or folder for csv; if None, the format's default name in the run folder.

    Returns:
        The files, and notes on data that the format cannot hold.

    Raises:
        InputError: the folder is not a run folder, the format cannot hold the run, or the place
            cannot be written to.
    """
    from laggard.analysis.tables.load_run import load_run

    run = load_run(folder)
    try:
        path = (
            # Links in the user's own path are followed; the file itself must not be one.
            out.parent.resolve() / out.name
            if out is not None
            else folder / EXPORT_FORMATS[name].default_name
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        return export(run, name, path)
    except OSError as error:
        raise InputError(
            f"{error.filename or out or folder}: {error.strerror} — choose another place with --out"
        ) from error
