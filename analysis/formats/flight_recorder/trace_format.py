"""Trace format of torch's flight recorder, for the registry."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.import_run.trace_format import TraceFormat
from laggard.analysis.formats.trace_json.json_file import list_json_files, read_beginning
from laggard.analysis.tables.load_run import RunData

_MARKS = (b'"collective_seq_id"', b'"pg_config"', b'"pg_status"', b'"nccl_comm_state"')
# A trace of torch.profiler also has a `pg_config`, which may be long, before its events.
_PROFILER_MARKS = (b'"traceEvents"', b'"schemaVersion"', b'"distributedInfo"')


def _is_flight_recorder(path: Path) -> bool:
    return any(map(_is_dump, list_json_files(path)))


def _is_dump(file: Path) -> bool:
    beginning = read_beginning(file)
    return (
        beginning.lstrip().startswith(b"{")
        and not any(mark in beginning for mark in _PROFILER_MARKS)
        and any(mark in beginning for mark in _MARKS)
    )


def _read(path: Path) -> RunData:
    from laggard.analysis.formats.flight_recorder.reader import read_flight_recorder

    return read_flight_recorder(path)


FLIGHT_RECORDER = TraceFormat(
    "flight_recorder",
    "a folder of flight recorder dumps (.json, one per rank)",
    _is_flight_recorder,
    _read,
)
