"""Trace format of Horovod's timeline, for the registry."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.import_run.trace_format import TraceFormat
from laggard.analysis.formats.trace_json.json_file import JSON_SUFFIXES, read_beginning
from laggard.analysis.tables.load_run import RunData

_MARKS = (b'"NEGOTIATE_', b"start_time_since_epoch_in_micros")


def _is_horovod(path: Path) -> bool:
    if not path.is_file() or not path.name.endswith(JSON_SUFFIXES):
        return False
    beginning = read_beginning(path)
    return beginning.lstrip().startswith(b"[") and any(mark in beginning for mark in _MARKS)


def _read(path: Path) -> RunData:
    from laggard.analysis.formats.horovod.reader import read_horovod

    return read_horovod(path)


HOROVOD = TraceFormat("horovod", "a Horovod timeline (.json)", _is_horovod, _read)
