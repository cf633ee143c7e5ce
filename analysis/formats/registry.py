"""Registry of the trace formats that `laggard analyze` reads, one line each."""

from __future__ import annotations

from pathlib import Path

from laggard.analysis.formats.bytedance.trace_format import BYTEDANCE
from laggard.analysis.formats.flight_recorder.trace_format import FLIGHT_RECORDER
from laggard.analysis.formats.horovod.trace_format import HOROVOD
from laggard.analysis.formats.import_run.trace_format import TraceFormat
from laggard.analysis.formats.kineto.ranks.trace_format import KINETO
from laggard.analysis.formats.refused_inputs import find_refused_input
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.core.errors import TraceFormatError


def _is_run_folder(path: Path) -> bool:
    return any((path / name).is_file() for name in ("run.json", "spans.parquet"))


RUN_FOLDER = TraceFormat("run", "a run folder", _is_run_folder, load_run)

# The order matters: a path has the first format that matches it.
TRACE_FORMATS: tuple[TraceFormat, ...] = (
    RUN_FOLDER,
    BYTEDANCE,
    HOROVOD,
    FLIGHT_RECORDER,
    KINETO,
)

SUPPORTED_INPUTS = (
    ", ".join(each.description for each in TRACE_FORMATS[:-1])
    + f", or {TRACE_FORMATS[-1].description}"
)


def detect_format(path: Path) -> TraceFormat:
    """Return the first format that a path matches.

    Raises:
        TraceFormatError: the path matches no format, or has one that is known but not read.

    Examples:
        >>> detect_format(Path("runs/quickstart/latest")).name
        'run'
    """
    if not path.exists():
        raise TraceFormatError(str(path), "", "no such file or folder", f"give {SUPPORTED_INPUTS}")
    refused = find_refused_input(path)
    if refused is not None and not RUN_FOLDER.matches(path):
        raise TraceFormatError(str(path), "", refused.problem, refused.fix)
    for each in TRACE_FORMATS:
        if each.matches(path):
            return each
    if not path.is_dir():
        rule = f"{path.suffix or 'a name without suffix'} is not the suffix of a trace"
        raise TraceFormatError(str(path), "", rule, f"give {SUPPORTED_INPUTS}")
    parquet = sorted(path.glob("*.parquet"))
    # ByteDance traces are single files, so a folder of them matches no format.
    fix = f"give one of its files, such as {parquet[0]}" if parquet else f"give {SUPPORTED_INPUTS}"
    raise TraceFormatError(str(path), "", "the folder contains no trace", fix)


def is_foreign_trace(path: Path) -> bool:
    """Return whether a path is a trace of another tool, by names only, and no run folder."""
    if not path.exists() or RUN_FOLDER.matches(path):
        return False
    return any(each.matches(path) for each in TRACE_FORMATS if each is not RUN_FOLDER)


def open_run(path: Path) -> RunData:
    """Return the run at a path, in any of the formats.

    Raises:
        RunFolderError: the content does not have the format that the path's name indicates.

    Examples:
        >>> run = open_run(Path("runs/quickstart/latest"))
        >>> [host.tier for host in run.hosts[:4]]
        ['cloud', 'cloud', 'fog', 'fog']
    """
    return detect_format(path).read(path)
