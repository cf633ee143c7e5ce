"""State of a campaign: an SQLite file with one row per run that has ended.

The database is kept in memory, and the file is read and replaced as a whole. SQLite would otherwise
follow links, and apply a journal that a stranger left beside the file. A campaign has at most some
thousand rows, and its runs take seconds to hours.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.input_files import parse_json, read_bounded
from laggard.core.files.output_files import write_atomically

log = logging.getLogger(__name__)

STATE_FILE = "state.sqlite"
_OLD_STATE = "state"
"""Folder in which versions before this one kept pickled objects, which are not safe to read."""

_SCHEMA = "CREATE TABLE runs (number INTEGER PRIMARY KEY, combination TEXT, row TEXT)"


@dataclass(frozen=True)
class CampaignState:
    """Runs of a campaign that have ended, in the order of their ends.

    Attributes:
        path: file of the state.
        database: its content, in memory.
    """

    path: Path
    database: sqlite3.Connection

    def add_run(self, combination: str, row: Mapping[str, object]) -> None:
        """Add a run that has ended, and replace the file."""
        with self.database:
            self.database.execute(
                "INSERT INTO runs (combination, row) VALUES (?, ?)", (combination, json.dumps(row))
            )
        write_atomically(self.path, self.database.serialize())

    def list_runs(self) -> Sequence[tuple[str, Mapping[str, object]]]:
        """Return the combination and the row of every run."""
        found = []
        try:
            rows = self.database.execute("SELECT combination, row FROM runs ORDER BY number")
            for combination, text in rows:
                values, row = parse_json(combination.encode()), parse_json(text.encode())
                if not isinstance(values, dict) or not isinstance(row, dict):
                    raise _make_state_error(self.path, "a row is not a JSON object")
                if not isinstance(values.get("repeat"), int):
                    raise _make_state_error(self.path, "a combination has no number of its repeat")
                found.append((combination, row))
        except (sqlite3.Error, ValueError, RecursionError, AttributeError) as error:
            raise _make_state_error(self.path, str(error)) from error
        return found

    def list_done(self) -> frozenset[str]:
        """Return the combinations whose runs are done."""
        return frozenset(key for key, row in self.list_runs() if row.get("status") == "done")


@contextmanager
def open_campaign(folder: Path) -> Iterator[CampaignState]:
    """Open the state of the campaign in a folder, and lock it against a second process.

    Raises:
        InputError: another process runs this campaign, or the state is damaged.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock_folder(folder, lock)
        path = folder / STATE_FILE
        if not os.path.lexists(path):
            _report_old_state(folder)
        with closing(sqlite3.connect(":memory:")) as database:
            _load_database(path, database)
            yield CampaignState(path, database)
    finally:
        os.close(lock)


def _lock_folder(folder: Path, lock: int) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(
            f"{folder}: another process is running this campaign — wait for its end, or end it"
        ) from error


def _load_database(path: Path, database: sqlite3.Connection) -> None:
    if not os.path.lexists(path):
        database.execute(_SCHEMA)
        return
    data = read_bounded(path)
    try:
        database.deserialize(data)
        # A file of a stranger may contain triggers and views, which would run in our statements.
        database.execute("PRAGMA trusted_schema = OFF")
        found = database.execute("SELECT sql FROM sqlite_schema").fetchall()
    # sqlite3 raises MemoryError for an empty file.
    except (sqlite3.Error, ValueError, MemoryError) as error:
        raise _make_state_error(path, str(error) or "it is empty") from error
    if found != [(_SCHEMA,)]:
        raise _make_state_error(path, "it has other tables than Laggard writes")


def _report_old_state(folder: Path) -> None:
    """Report the state of an older version, and keep its table."""
    table = folder / "results.csv"
    if (folder / _OLD_STATE).exists():
        log.warning(
            "%s: the state of an older version of Laggard is not read, so every combination is run"
            " — delete this folder",
            folder / _OLD_STATE,
        )
    with suppress(FileNotFoundError):
        table.rename(folder / "results_old.csv")
        log.warning("%s was renamed to results_old.csv", table)


def _make_state_error(path: Path, reason: str) -> InputError:
    return InputError(
        f"{path}: not the state of a campaign: {reason} — delete the file, and every combination is"
        " run again"
    )
