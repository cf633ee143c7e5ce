"""Trace format of torch.profiler, for the registry."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.import_run.trace_format import TraceFormat
from laggard.analysis.formats.kineto.ranks.trace_paths import find_trace_cycles
from laggard.analysis.tables.load_run import RunData


def _is_kineto(path: Path) -> bool:
    return bool(find_trace_cycles(path))


def _read(path: Path) -> RunData:
    from laggard.analysis.formats.kineto.ranks.reader import read_kineto

    return read_kineto(path)


KINETO = TraceFormat(
    "kineto",
    "a torch.profiler trace (.json, .json.gz, or a folder with one per rank)",
    _is_kineto,
    _read,
)
