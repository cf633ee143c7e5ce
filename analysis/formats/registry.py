"""The trace formats that `laggard analyze` reads, one line each; detection and reading."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.bytedance.trace_format import BYTEDANCE
from laggard.analysis.formats.import_run.trace_format import TraceFormat
from laggard.analysis.formats.kineto.trace_format import KINETO
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.core.errors import TraceFormatError


def _is_run_folder(path: Path) -> bool:
    return any((path / name).is_file() for name in ("run.json", "spans.parquet"))


RUN_FOLDER = TraceFormat("run", "a run folder", _is_run_folder, load_run)

TRACE_FORMATS: tuple[TraceFormat, ...] = (
    RUN_FOLDER,
    BYTEDANCE,
    KINETO,
)

SUPPORTED_INPUTS = (
    ", ".join(each.description for each in TRACE_FORMATS[:-1])
    + f", or {TRACE_FORMATS[-1].description}"
)


def detect_format(path: Path) -> TraceFormat:
    """Return the first format that a path matches.

    Raises:
        TraceFormatError: the path matches no format.
    """
    if not path.exists():
        raise TraceFormatError(
            str(path), "", "there is no such file or folder", f"give {SUPPORTED_INPUTS}"
        )
    for each in TRACE_FORMATS:
        if each.matches(path):
            return each
    if not path.is_dir():
        rule = f"{path.suffix or 'no ending'} is no ending of a trace"
        raise TraceFormatError(str(path), "", rule, f"give {SUPPORTED_INPUTS}")
    parquet = sorted(path.glob("*.parquet"))
    fix = f"give one file of it, such as {parquet[0]}" if parquet else f"give {SUPPORTED_INPUTS}"
    raise TraceFormatError(str(path), "", "no trace is in this folder", fix)


def open_run(path: Path) -> RunData:
    """Return the run at a path, of whatever format.

    Raises:
        RunFolderError: the content is not of the format that its name promises.
    """
    return detect_format(path).read(path)
