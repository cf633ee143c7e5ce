"""State of a campaign: an SQLite file with its cells and every attempt to run one.

The database is kept in memory, and the file is read and replaced as a whole, flushed to the disk.
SQLite would otherwise follow links, and apply a journal that a stranger left beside the file. A
campaign has at most some thousand rows, and its runs take seconds to hours.

An attempt is written before its run starts, with a token that the run records too. Therefore a run
that ended after its campaign was killed is found again, and counts.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, TypeAdapter, ValidationError

from laggard.campaign.cells import Cell
from laggard.core.errors import InputError, escape_unprintable
from laggard.core.files.input_files import read_bounded, read_json
from laggard.core.files.output_files import write_atomically, write_json

STATE_FILE = "campaign.sqlite"
HOLDER_FILE = "running.json"
STARTED = "started"
"""Status of an attempt whose run has not ended, as far as the campaign knows."""

_LONGEST_END_S = 60.0
"""Longest time that the last run of a killed campaign is given to end."""

_POLL_S = 0.1

_SCHEMA = (
    "CREATE TABLE campaign (origin TEXT NOT NULL)",
    "CREATE TABLE cells (digest TEXT PRIMARY KEY, description TEXT)",
    "CREATE TABLE attempts (number INTEGER PRIMARY KEY, digest TEXT, token TEXT, status, row TEXT)",
)

Scalar = str | int | float | bool | None
Row = Mapping[str, Scalar]
_ROW = TypeAdapter(dict[str, Scalar])


class CellDescription(BaseModel):
    """Description of a cell in a campaign's state.

    Attributes:
        scenario: name of the scenario's folder.
        variant: name of its set of values.
        varied: values of the axes.
        setup: digest of its setup.
        repeat: number of the repeat.
        seed: seed of the workload.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    scenario: str
    variant: str
    varied: dict[str, JsonValue]
    setup: str
    repeat: int
    seed: int | None


@dataclass(frozen=True)
class Attempt:
    """One attempt to run a cell.

    Attributes:
        digest: digest of the cell.
        token: text that the run records in its command.
        status: status of the run, or `STARTED`.
        row: results, by column.
    """

    digest: str
    token: str
    status: str
    row: Row


@dataclass(frozen=True)
class CampaignState:
    """Cells and attempts of a campaign, in the order in which they came.

    Attributes:
        path: file of the state.
        database: its content, in memory.
    """

    path: Path
    database: sqlite3.Connection

    def claim(self, origin: Path) -> None:
        """Note whose campaign this is, once.

        Raises:
            InputError: another campaign file has this name.
        """
        known = [Path(row[0]) for row in self.database.execute("SELECT origin FROM campaign")]
        # A file that was moved keeps its campaign.
        if known and known[0] != origin and known[0].exists():
            raise InputError(
                f"{self.path.parent}: this folder belongs to the campaign of {known[0]}, not of"
                f" {origin} — give this one another name with --name"
            )
        with self.database:
            self.database.execute("DELETE FROM campaign")
            self.database.execute("INSERT INTO campaign VALUES (?)", (str(origin),))

    def add_cells(self, cells: Iterable[Cell]) -> None:
        """Add the cells that are new, and replace the file."""
        descriptions = [(cell.digest, _describe(cell).model_dump_json()) for cell in cells]
        with self.database:
            self.database.executemany("INSERT OR IGNORE INTO cells VALUES (?, ?)", descriptions)
        self._write()

    def start_attempt(self, digest: str, token: str) -> None:
        """Add an attempt whose run starts now, and replace the file."""
        with self.database:
            self.database.execute(
                "INSERT INTO attempts (digest, token, status, row) VALUES (?, ?, ?, '{}')",
                (digest, token, STARTED),
            )
        self._write()

    def end_attempt(self, token: str, row: Row) -> None:
        """Store the results of an attempt, and replace the file."""
        with self.database:
            self.database.execute(
                "UPDATE attempts SET status = ?, row = ? WHERE token = ?",
                (row["status"], json.dumps(row), token),
            )
        self._write()

    def drop_attempt(self, token: str) -> None:
        """Remove an attempt that left nothing."""
        with self.database:
            self.database.execute("DELETE FROM attempts WHERE token = ?", (token,))
        self._write()

    def list_cells(self) -> Mapping[str, CellDescription]:
        """Return every cell that the campaign ever had, by its digest."""
        with _explain_damage(self.path):
            rows = self.database.execute("SELECT digest, description FROM cells ORDER BY rowid")
            return {digest: CellDescription.model_validate_json(text) for digest, text in rows}

    def list_attempts(self) -> Sequence[Attempt]:
        """Return every attempt."""
        with _explain_damage(self.path):
            rows = self.database.execute(
                "SELECT digest, token, status, row FROM attempts ORDER BY number"
            )
            return [
                Attempt(d, token, status, _ROW.validate_json(row)) for d, token, status, row in rows
            ]

    def list_done(self) -> frozenset[str]:
        """Return the cells that have a run that is done."""
        return frozenset(each.digest for each in self.list_attempts() if each.status == "done")

    def _write(self) -> None:
        write_atomically(self.path, self.database.serialize())


@contextmanager
def open_campaign(folder: Path) -> Iterator[CampaignState]:
    """Open the state of the campaign in a folder, and lock it against a second process.

    The processes of a run inherit the lock. If the campaign that they belong to was killed, they
    are about to end, and this call waits for it.

    Raises:
        InputError: another process runs this campaign, or the state is damaged.
    """
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock_folder(folder, lock)
        write_json(folder / HOLDER_FILE, _describe_this_process())
        with read_campaign(folder) as state:
            yield state
        (folder / HOLDER_FILE).unlink(missing_ok=True)
    finally:
        os.close(lock)


@contextmanager
def read_campaign(folder: Path) -> Iterator[CampaignState]:
    """Read the state of a campaign without a lock; changes would be lost.

    Raises:
        InputError: the state is damaged.
    """
    path = folder / STATE_FILE
    with closing(sqlite3.connect(":memory:")) as database:
        _load_database(path, database)
        yield CampaignState(path, database)


def _describe(cell: Cell) -> CellDescription:
    return CellDescription(
        scenario=cell.setup.scenario.name,
        variant=cell.setup.variant,
        varied=dict(cell.setup.varied),
        setup=cell.setup_digest,
        repeat=cell.repeat,
        seed=cell.seed,
    )


def _lock_folder(folder: Path, lock: int) -> None:
    give_up_s = time.monotonic() + _LONGEST_END_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > give_up_s or not _has_holder_ended(folder):
                raise InputError(
                    f"{folder}: another process{_name_holder(folder)} is running this campaign —"
                    " wait for its end, or end it"
                ) from error
        else:
            return
        time.sleep(_POLL_S)


def _describe_this_process() -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "user": _name_user(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _name_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the user has no name on this machine
        return str(os.getuid())


def _has_holder_ended(folder: Path) -> bool:
    """Return True if the process that runs the campaign was one of this machine, and has ended."""
    holder = _read_holder(folder)
    pid = holder.get("pid")
    return holder.get("host") == socket.gethostname() and (
        isinstance(pid, int) and 0 < pid < 1 << 31 and not Path(f"/proc/{pid}").exists()
    )


def _name_holder(folder: Path) -> str:
    holder = _read_holder(folder)
    if not holder:
        return ""
    named = {key: str(holder.get(key, "?"))[:100] for key in ("pid", "user", "host", "since")}
    return escape_unprintable(" ({pid} of {user} on {host}, since {since})".format_map(named))


def _read_holder(folder: Path) -> Mapping[str, object]:
    """Return who wrote that it runs the campaign; the file is data of somebody else."""
    with suppress(InputError):
        holder = read_json(folder / HOLDER_FILE, 4096)
        if isinstance(holder, dict):
            return holder
    return {}


def _load_database(path: Path, database: sqlite3.Connection) -> None:
    if not os.path.lexists(path):
        for statement in _SCHEMA:
            database.execute(statement)
        return
    data = read_bounded(path)
    try:
        database.deserialize(data)
        # A file of a stranger may contain triggers and views, which would run in our statements.
        database.execute("PRAGMA trusted_schema = OFF")
        found = database.execute(
            "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY rowid"
        ).fetchall()
    # sqlite3 raises MemoryError for an empty file.
    except (sqlite3.Error, ValueError, MemoryError) as error:
        raise _make_state_error(path, str(error) or "it is empty") from error
    if found != [(statement,) for statement in _SCHEMA]:
        raise _make_state_error(path, "it has other tables than Laggard writes")


@contextmanager
def _explain_damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, ValidationError, ValueError, TypeError, RecursionError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _make_state_error(path, reason) from error


def _make_state_error(path: Path, reason: str) -> InputError:
    return InputError(
        escape_unprintable(
            f"{path}: not the state of a campaign: {reason} — delete the file, and every cell is"
            " run again"
        )
    )
