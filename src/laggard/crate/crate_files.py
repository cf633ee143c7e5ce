"""Files of a run or campaign that belong into its crate."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.run_schema import RunRecord
from laggard.run_folder.store import RECORD_FILE, load_record

METADATA_FILE = "ro-crate-metadata.json"
CRATE_FILE = "crate.zip"
CAMPAIGN_FILE = "campaign.yaml"
RESULTS_FILE = "results.csv"
CAMPAIGN_FILES = (CAMPAIGN_FILE, RESULTS_FILE, "results.parquet", "index.html")
"""Files of a campaign's folder that describe it; its database is rebuilt by running it again."""

RECORD_FILES = (
    RECORD_FILE,
    "git_laggard.diff",
    "git_scenario.diff",
    "hosts.parquet",
    "steps.parquet",
    "fidelity.json",
    "fidelity_violations.json",
    "stragglers.json",
    "answer.json",
    "summary.json",
)
"""Files of a run that a comparison needs; a campaign's crate has only these, and the scenario."""

MAX_FILES = 20_000
_LEFT_OUT = frozenset(
    {
        "workers",
        "logs",
        "lock",
        "checkpoint.pt",
        "weights.pt",
        "reservation_known_hosts",
        CRATE_FILE,
    }
) | {METADATA_FILE}
"""Names in a run folder that a crate omits: streams, logs, locks, keys and pickled tensors."""


@dataclass(frozen=True)
class CratedRun:
    """Run in a crate.

    Attributes:
        record: record of the run.
        folder: its run folder.
        prefix: path of its folder in the crate, with a slash at its end; empty for the root.
        names: names of its files, relative to its folder.
    """

    record: RunRecord
    folder: Path
    prefix: str
    names: tuple[str, ...]

    @property
    def inputs(self) -> Sequence[str]:
        """Return the paths of the scenario's files in the crate."""
        return [self.prefix + name for name in self.names if name.startswith("scenario/")]

    @property
    def outputs(self) -> Sequence[str]:
        """Return the paths of all other files in the crate."""
        return [self.prefix + name for name in self.names if not name.startswith("scenario/")]


def list_run(folder: Path, prefix: str = "", *, only_record: bool = False) -> CratedRun:
    """List the files of a run that belong into a crate.

    Args:
        folder: run folder.
        prefix: path of its folder in the crate.
        only_record: whether to list only what a comparison needs.

    Raises:
        RunFolderError: the folder has no valid record.
        InputError: the run has not ended, or has too many files.
    """
    record = load_record(folder)
    if record.status == "running":
        raise InputError(f"{folder}: this run has not ended — export it after its end")
    names = [
        name
        for name in _list_files(folder)
        if not only_record or name in RECORD_FILES or name.startswith("scenario/")
    ]
    return CratedRun(record, folder, prefix, tuple(names))


def _list_files(folder: Path) -> Iterator[str]:
    """Yield the names of all regular files, without those left out, and without links."""
    count = 0
    for parent, folders, files in os.walk(folder):
        below = Path(parent).relative_to(folder)
        top = below == Path()
        folders[:] = sorted(name for name in folders if _belongs(name, top=top))
        for name in sorted(files):
            path = Path(parent) / name
            if not _belongs(name, top=top) or path.is_symlink() or not path.is_file():
                continue
            count += 1
            if count > MAX_FILES:
                raise InputError(
                    f"{folder}: more than {MAX_FILES} files, the limit of a crate — give a run"
                    " folder, and remove what is not the run's"
                )
            yield (below / name).as_posix()


def _belongs(name: str, *, top: bool) -> bool:
    return not name.startswith(".") and not (top and name in _LEFT_OUT)
