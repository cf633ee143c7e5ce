"""Collection of what a killed run left: its processes' streams become the tables of its folder."""

from __future__ import annotations

import logging
from pathlib import Path

from laggard.core.errors import LaggardError
from laggard.core.virtual_time import Dilation
from laggard.run_folder.collect import (
    STREAMS_FOLDER,
    analyze_training,
    collect_streams,
    remove_streams,
    report_untrained_run,
)
from laggard.run_folder.display import SilentDisplay
from laggard.run_folder.journal import Journal
from laggard.run_folder.store import RunFolder, find_run, load_record
from laggard.workloads.output.worker_output import WorkerOutputDir

_log = logging.getLogger(__name__)


def find_collected_run(text: str, root: Path) -> Path:
    """Find the run folder that a user means, and collect what a killed run left in it.

    Args:
        text: a path, a run id or the beginning of one, or the name of a scenario for its latest
            run.
        root: folder of all runs.

    Raises:
        RunFolderError: no run or several runs match.
    """
    folder = find_run(text, root)
    recover_run(folder)
    return folder


def find_analyzed_run(text: str, runs: Path) -> Path:
    """Find the run folder that a user means; a trace of another tool is analyzed into one.

    Args:
        text: a trace, or what `find_collected_run` finds.
        runs: folder of all runs.

    Raises:
        InputError: nothing matches, or the trace is damaged.
    """
    from laggard.analysis.formats.registry import is_foreign_trace
    from laggard.run_folder.analyze import analyze_path

    path = Path(text)
    return (
        analyze_path(path, None, runs) if is_foreign_trace(path) else find_collected_run(text, runs)
    )


def recover_run(folder: Path) -> bool:
    """Write tables, record and report of a run that was killed before it did so itself.

    A run that goes on is left alone. If the streams cannot be collected, they stay where they are,
    and the log states the reason.

    Args:
        folder: run folder.

    Returns:
        Whether anything was collected.
    """
    streams = folder / STREAMS_FOLDER
    if streams.is_symlink() or not streams.is_dir():
        return False
    try:
        return _recover_streams(folder)
    except (LaggardError, OSError) as error:
        _log.warning(
            "%s: this run was killed, and its streams cannot be collected: %s", streams, error
        )
        return False


def _recover_streams(folder: Path) -> bool:
    from laggard.scenario.load import load_scenario

    reopened = RunFolder.reopen(folder)
    if reopened is None:
        return False
    with reopened:
        record = load_record(folder)
        journal = Journal(record, reopened, SilentDisplay(), list(record.stages))
        if record.status == "running":
            # No process but this one holds the lock, so the run is over.
            reason = record.error or "the run was killed"
            journal.update(status="interrupted", error=reason, ended=None)
        if not WorkerOutputDir(folder / STREAMS_FOLDER).zero.exists():
            report_untrained_run(journal)
            return True
        scenario = load_scenario(reopened.scenario)
        done = collect_streams(folder, scenario, Dilation(record.dilation), runs_code=False)
        analyze_training(journal, scenario, done)
        remove_streams(folder)
        return True
