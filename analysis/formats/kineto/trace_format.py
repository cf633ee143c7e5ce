"""Trace format of torch.profiler, for the registry."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.import_run.trace_format import TraceFormat
from laggard.analysis.formats.kineto import JSON_SUFFIXES
from laggard.analysis.tables.load_run import RunData


def _is_kineto(path: Path) -> bool:
    files = path.iterdir() if path.is_dir() else (path,)
    return any(file.name.endswith(JSON_SUFFIXES) for file in files)


def _read(path: Path) -> RunData:
    from laggard.analysis.formats.kineto.reader import read_kineto

    return read_kineto(path)


KINETO = TraceFormat(
    "kineto",
    "a torch.profiler trace (.json, .json.gz, or a folder with one per rank)",
    _is_kineto,
    _read,
)
