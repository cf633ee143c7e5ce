"""Reproduction of a run, a campaign or a crate.

What is reproduced may come from a stranger. Its files are copied within limits, its scenario is
checked, and programs of it run only if the user trusts them (`program_trust.py`).
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import InputError, LaggardError, RunFolderError
from laggard.core.files.input_files import read_json
from laggard.core.files.output_files import make_folder, write_json
from laggard.crate.crate_files import METADATA_FILE, RESULTS_FILE
from laggard.crate.read_crate import copy_run, find_kind, read_campaign_rows
from laggard.crate.results_rows import CountedCell
from laggard.crate.source_tree import SourceTree, open_source
from laggard.crate.write_crate import find_campaign, find_row
from laggard.reproduce.program_trust import require_trust
from laggard.reproduce.run_again import AgainOptions, ReproducedRun, compare_again, start_again
from laggard.run_folder.store import find_run, load_record, to_folder_name

STATE_FILE = "reproduction.json"
_FOLDER = "reproductions"


@dataclass(frozen=True)
class _Staged:
    """Copy of an original.

    Attributes:
        label: name of the original.
        original: copy of its run folder.
        scenario: copy of its scenario, in a folder of the scenario's name.
    """

    label: str
    original: Path
    scenario: Path


def reproduce(
    text: str, options: AgainOptions, on_done: Callable[[ReproducedRun], None]
) -> tuple[ReproducedRun, ...]:
    """Run a run or every cell of a campaign again, and compare.

    A campaign that was interrupted continues: `runs/reproductions/<name>/reproduction.json` lists
    the runs that were made.

    Args:
        text: run folder, campaign folder, crate, or what `find_run` finds.
        options: options of the reproduction.
        on_done: function that receives each comparison as soon as it is made.

    Returns:
        The comparison of every run.

    Raises:
        InputError: nothing matches, something of it is damaged, or programs of it are not trusted.
        LaggardError: a run could not be made.
    """
    path, own = _find_source(text, options.runs)
    with (
        open_source(path) as tree,
        _make_staging(options.runs) as staging,
    ):
        if find_kind(tree) == "campaign":
            return tuple(_reproduce_campaign(tree, staging, options, on_done, own=own))
        staged = _stage(tree, "", staging / "run", "")
        require_trust(path, staged.scenario, trusted=options.trusted or own)
        done = _reproduce_run(staged, options, own=own)
        on_done(done)
        return (done,)


def _find_source(text: str, runs: Path) -> tuple[Path, bool]:
    """Return the source, and whether it is the user's own.

    Runs in the user's folder of runs are; a crate and any other path may be a stranger's.
    """
    path = Path(text)
    if path.suffix == ".zip" or (path / METADATA_FILE).is_file():
        return path, False
    found = find_campaign(text, runs) or find_run(text, runs)
    return found, found.resolve().is_relative_to(runs.resolve())


@contextmanager
def _make_staging(runs: Path) -> Iterator[Path]:
    runs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".reproduce-", dir=runs) as staging:
        yield Path(staging).resolve()


def _stage(tree: SourceTree, prefix: str, folder: Path, label: str) -> _Staged:
    """Copy an original; its scenario keeps its name, since the new run is named after it."""
    original = make_folder(folder, "original")
    copy_run(tree, prefix, original)
    record = load_record(original)
    scenario = make_folder(folder, "scenarios") / to_folder_name(record.scenario)
    (original / "scenario").rename(scenario)
    # The comparison reads the files as they were given.
    (original / "scenario").symlink_to(scenario)
    return _Staged(label or f"{record.scenario} {record.id}", original, scenario)


def _reproduce_run(staged: _Staged, options: AgainOptions, *, own: bool) -> ReproducedRun:
    folder = start_again(load_record(staged.original), staged.scenario, options, own=own)
    return compare_again(staged.label, staged.original, folder, options.tolerance)


def _reproduce_campaign(
    tree: SourceTree,
    staging: Path,
    options: AgainOptions,
    on_done: Callable[[ReproducedRun], None],
    *,
    own: bool,
) -> Iterator[ReproducedRun]:
    rows = read_campaign_rows(tree)
    if not rows:
        raise InputError(
            f"{tree.path}: no cell of this campaign is done, so there is nothing to compare — run"
            " the campaign first"
        )
    staged = []
    for number, (prefix, row) in enumerate(rows.items()):
        staged.append(_stage_row(tree, prefix, row, staging / str(number), options.runs))
    # Every cell is checked before the first one runs.
    for each in staged:
        require_trust(tree.path, each.scenario, trusted=options.trusted or own)
    state = _ReproductionState.open(tree, options)
    for each, row in zip(staged, rows.values(), strict=True):
        folder = state.find(row.run)
        if folder is None:
            folder = start_again(load_record(each.original), each.scenario, options, own=own)
            state.add(row.run, folder)
        done = compare_again(each.label, each.original, folder, options.tolerance)
        on_done(done)
        yield done


def _stage_row(
    tree: SourceTree, prefix: str, row: CountedCell, folder: Path, runs: Path
) -> _Staged:
    """Copy the run of a row, from the crate, or from the folder of runs."""
    if any(name.startswith(prefix) for name in tree.names()):
        return _stage(tree, prefix, folder, row.label)
    found = find_row(row, runs)
    if found is None:
        raise RunFolderError(
            f"{tree.path}: the run {row.run} of this campaign is not there — give its folder of"
            " runs with --runs"
        )
    with open_source(found) as run:
        return _stage(run, "", folder, row.label)


@dataclass
class _ReproductionState:
    """Runs that a reproduction of a campaign has made so far.

    Attributes:
        path: file of the state.
        source: what is reproduced, and how.
        made: run folder of each reproduction, by the id of its original.
    """

    path: Path
    source: str
    made: dict[str, str]

    @classmethod
    def open(cls, tree: SourceTree, options: AgainOptions) -> _ReproductionState:
        """Read the state; that of another source is ignored."""
        digest = hashlib.sha256(tree.read(RESULTS_FILE))
        digest.update("\0".join(options.extra).encode("utf-8", "surrogateescape"))
        name = to_folder_name(tree.path.stem)
        path = make_folder(options.runs, _FOLDER, name) / STATE_FILE
        known: Mapping[str, object] = {}
        if path.exists():
            document = read_json(path)
            known = document if isinstance(document, dict) else {}
        made = known.get("made")
        if known.get("source") != digest.hexdigest() or not isinstance(made, dict):
            made = {}
        return cls(path, digest.hexdigest(), {str(key): str(each) for key, each in made.items()})

    def find(self, run: str) -> Path | None:
        """Return the finished reproduction of a run; None if there is none yet."""
        folder = self.made.get(run)
        if folder is None:
            return None
        try:
            status = load_record(Path(folder)).status
        except LaggardError:
            return None
        return Path(folder) if status in {"done", "unfaithful"} else None

    def add(self, run: str, folder: Path) -> None:
        """Add a reproduction, and write the state."""
        self.made[run] = str(folder)
        write_json(self.path, {"source": self.source, "made": self.made})
