"""Which format a path is, by what is in it, and the run that it holds."""

from __future__ import annotations

import enum
from pathlib import Path

from laggard.analysis.load import Run, load_run
from laggard.errors import TraceFormatError

JSON_ENDINGS = (".json", ".json.gz")


class Format(enum.StrEnum):
    """What `laggard analyze` reads."""

    RUN = "run"
    BYTEDANCE = "bytedance"
    KINETO = "kineto"


READ = (
    "a run folder, a Parquet file with ByteDance's columns, or a torch.profiler trace (.json,"
    " .json.gz, or a folder with one per rank)"
)


def recognise(path: Path) -> Format:
    """Which format a path is.

    Raises:
        TraceFormatError: none that is known.
    """
    if path.is_dir():
        if any((path / name).is_file() for name in ("run.json", "spans.parquet")):
            return Format.RUN
        if any(file.name.endswith(JSON_ENDINGS) for file in path.iterdir()):
            return Format.KINETO
        parquet = sorted(file.name for file in path.glob("*.parquet"))
        fix = f"give one file of it, such as {path / parquet[0]}" if parquet else f"give {READ}"
        raise TraceFormatError(str(path), "", "no trace is in this folder", fix)
    if not path.is_file():
        raise TraceFormatError(str(path), "", "there is no such file or folder", f"give {READ}")
    if path.name.endswith(".parquet"):
        return Format.BYTEDANCE
    if path.name.endswith(JSON_ENDINGS):
        return Format.KINETO
    raise TraceFormatError(
        str(path), "", f"{path.suffix or 'no ending'} is no ending of a trace", f"give {READ}"
    )


def open_run(path: Path) -> Run:
    """The run at a path, of whatever format.

    Raises:
        RunFolderError: it is not what it says.
    """
    match recognise(path):
        case Format.RUN:
            return load_run(path)
        case Format.BYTEDANCE:
            from laggard.analysis.formats.bytedance import read_operations
            from laggard.analysis.formats.operations_to_run import run_of_operations

            return run_of_operations(read_operations(path), path)
        case Format.KINETO:
            from laggard.analysis.formats.kineto import read_kineto

            return read_kineto(path)
