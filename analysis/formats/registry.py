"""Which format a path is, by what is in it, and the run that it holds."""

from __future__ import annotations

import enum
from pathlib import Path

from laggard.analysis.tables.load_run import RunData, load_run
from laggard.core.errors import TraceFormatError

JSON_SUFFIXES = (".json", ".json.gz")


class TraceFormat(enum.StrEnum):
    """What `laggard analyze` reads."""

    RUN = "run"
    BYTEDANCE = "bytedance"
    KINETO = "kineto"


SUPPORTED_INPUTS = (
    "a run folder, a Parquet file with ByteDance's columns, or a torch.profiler trace (.json,"
    " .json.gz, or a folder with one per rank)"
)


def detect_format(path: Path) -> TraceFormat:
    """Which format a path is.

    Raises:
        TraceFormatError: none that is known.
    """
    if path.is_dir():
        if any((path / name).is_file() for name in ("run.json", "spans.parquet")):
            return TraceFormat.RUN
        if any(file.name.endswith(JSON_SUFFIXES) for file in path.iterdir()):
            return TraceFormat.KINETO
        parquet = sorted(file.name for file in path.glob("*.parquet"))
        fix = (
            f"give one file of it, such as {path / parquet[0]}"
            if parquet
            else f"give {SUPPORTED_INPUTS}"
        )
        raise TraceFormatError(str(path), "", "no trace is in this folder", fix)
    if not path.is_file():
        raise TraceFormatError(
            str(path), "", "there is no such file or folder", f"give {SUPPORTED_INPUTS}"
        )
    if path.name.endswith(".parquet"):
        return TraceFormat.BYTEDANCE
    if path.name.endswith(JSON_SUFFIXES):
        return TraceFormat.KINETO
    raise TraceFormatError(
        str(path),
        "",
        f"{path.suffix or 'no ending'} is no ending of a trace",
        f"give {SUPPORTED_INPUTS}",
    )


def open_run(path: Path) -> RunData:
    """The run at a path, of whatever format.

    Raises:
        RunFolderError: it is not what it says.
    """
    match detect_format(path):
        case TraceFormat.RUN:
            return load_run(path)
        case TraceFormat.BYTEDANCE:
            from laggard.analysis.formats.bytedance.parquet_file import read_operations
            from laggard.analysis.formats.bytedance.to_run import operations_to_run

            return operations_to_run(read_operations(path), path)
        case TraceFormat.KINETO:
            from laggard.analysis.formats.kineto.reader import read_kineto

            return read_kineto(path)
