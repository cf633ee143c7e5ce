"""Files of the traces of all ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.formats.kineto import JSON_SUFFIXES

_CYCLE = re.compile(r"^iteration[_-]?(\d{1,9})$")


@dataclass(frozen=True)
class TraceCycle:
    """Files of one profiling cycle, one for each rank; `name` is that of its folder."""

    name: str
    files: tuple[Path, ...]


def find_trace_cycles(path: Path) -> tuple[TraceCycle, ...]:
    """Return the profiling cycles at a path, in the order of their steps; none without a trace.

    A folder holds one cycle, or one subfolder `iteration_N` for each cycle.
    """
    if not path.is_dir():
        return (TraceCycle(path.name, (path,)),) if path.name.endswith(JSON_SUFFIXES) else ()
    files = _list_files(path)
    if files:
        return (TraceCycle(path.name, files),)
    folders = [
        (int(number[1]), folder)
        for folder in path.iterdir()
        if (number := _CYCLE.match(folder.name)) and folder.is_dir()
    ]
    cycles = (TraceCycle(folder.name, _list_files(folder)) for _, folder in sorted(folders))
    return tuple(cycle for cycle in cycles if cycle.files)


def _list_files(folder: Path) -> tuple[Path, ...]:
    return tuple(sorted(file for file in folder.iterdir() if file.name.endswith(JSON_SUFFIXES)))
