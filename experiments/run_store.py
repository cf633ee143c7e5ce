"""Run folders: `runs/<scenario>/<run-id>/`, their lock, their record, `latest`.

A run holds an flock on its folder's `lock` file from before the folder has its name until it ends,
so a record that says `running` while nobody holds the lock was left by a run that was killed: it
reads as `interrupted`. The lock belongs to the open file, which forked children share: it falls
when the last process of the run is gone. Every document is written beside its place and renamed
into it, so no reader ever sees half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from laggard.errors import RunFolderError
from laggard.run_schema import SCHEMA_VERSION, RunRecord

log = logging.getLogger(__name__)

RECORD = "run.json"
LOCK = "lock"
LATEST = "latest"
_UNFINISHED = ".new-"
_UNFINISHED_S = 3600.0
_LARGEST_RECORD = 64 << 20


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run that this process is making; a context manager that lets go of the lock.

    Attributes:
        path: `runs/<scenario>/<run-id>`.
        lock_fd: the descriptor whose flock says that the run lives; a forked process that outlives
            the run must close it.
    """

    path: Path
    lock_fd: int

    @classmethod
    def create(cls, root: Path, draft: RunRecord) -> tuple[Self, RunRecord]:
        """Make the folder of a new run, locked and with a first record, and point `latest` at it.

        Args:
            root: the folder of all runs; made when missing.
            draft: the first record; its id and status are replaced.

        Returns:
            The folder, and the record as written.

        Raises:
            RunFolderError: the folder cannot be made there.
        """
        scenario = root / folder_name(draft.scenario)
        with _explained(scenario, "choose another folder with --runs"):
            scenario.mkdir(parents=True, exist_ok=True)
            _sweep(scenario)
            unfinished = scenario / f"{_UNFINISHED}{secrets.token_hex(8)}"
            unfinished.mkdir()
            with contextlib.ExitStack() as undo:
                undo.callback(shutil.rmtree, unfinished, ignore_errors=True)
                lock_fd = _take_lock(unfinished / LOCK)
                undo.callback(os.close, lock_fd)
                path, record = _settle(unfinished, draft)
                undo.callback(shutil.rmtree, path, ignore_errors=True)
                _point_latest(path)
                undo.pop_all()
        return cls(path, lock_fd), record

    @property
    def scenario(self) -> Path:
        """Where the scenario's files, as run, are kept."""
        return self.path / "scenario"

    @property
    def logs(self) -> Path:
        """Where logs are kept."""
        return self.path / "logs"

    def write_record(self, record: RunRecord) -> None:
        """Replace `run.json` at once, or leave the old one.

        Raises:
            RunFolderError: it cannot be written (the disk is full, the folder is gone).
        """
        with _explained(self.path, "make room there"):
            write_atomically(self.path / RECORD, record.model_dump_json(indent=2).encode() + b"\n")

    def write_scenario(self, files: Mapping[str, bytes]) -> None:
        """Keep the scenario's files as run; names may lead into folders below.

        Raises:
            RunFolderError: they cannot be written.
        """
        with _explained(self.scenario, "make room there"):
            for name, content in files.items():
                target = self.scenario / name
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, content)

    def close(self) -> None:
        """Let go of the lock; write the last record before."""
        with contextlib.suppress(OSError):
            os.close(self.lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def new_run_id(now: datetime | None = None) -> str:
    """An id that sorts by time (UTC, to the millisecond) and that no other run of this moment
    has.
    """
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03d}Z-{secrets.token_hex(3)}"


def folder_name(scenario: str) -> str:
    """A scenario's name as a folder name, without what shells and file systems treat specially."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario).lstrip(".-")[:100]
    return plain or "scenario"


def load_record(path: Path) -> RunRecord:
    """The record of a run folder, with `interrupted` inferred.

    Args:
        path: the folder, or its `run.json`.

    Raises:
        RunFolderError: no run folder, or a record that is not one.
    """
    folder = path.parent if path.name == RECORD else path
    record = _read_record(folder / RECORD)
    if record.status != "running" or _is_held(folder / LOCK):
        return record
    # It may have ended between the two looks; a run writes its last record before it lets go of the
    # lock.
    record = _read_record(folder / RECORD)
    if record.status != "running":
        return record
    return record.model_copy(
        update={"status": "interrupted", "error": record.error or "the run was killed"}
    )


def list_runs(root: Path) -> list[tuple[RunRecord, Path]]:
    """Every run below `root` with its folder, the newest last; a record that cannot be read is
    logged and left out.

    Raises:
        RunFolderError: `root` is there and cannot be listed.
    """
    if not root.exists():
        return []
    with _explained(root, "choose another folder with --runs"):
        folders = sorted(record.parent for record in root.glob(f"*/*/{RECORD}"))
    found: list[tuple[RunRecord, Path]] = []
    for folder in folders:
        if folder.is_symlink() or folder.name.startswith(_UNFINISHED):
            continue
        try:
            found.append((load_record(folder), folder))
        except RunFolderError as error:
            log.warning("left out: %s", error)
    return sorted(found, key=lambda entry: (entry[0].id, str(entry[1])))


def find_run(text: str, root: Path) -> Path:
    """The run folder that a user means: a path, a run id or the beginning of one, or a scenario's
    name for its latest run.

    Raises:
        RunFolderError: none, or several.
    """
    path = Path(text)
    if (path / RECORD).is_file():
        return path.resolve()
    if (root / text / LATEST / RECORD).is_file():
        return (root / text / LATEST).resolve()
    if path.is_dir():
        raise RunFolderError(
            f"{text}: there is no {RECORD} in it — name the folder of one run, or a scenario or"
            " run id"
        )
    found = [folder for _, folder in list_runs(root) if text and folder.name.startswith(text)]
    if len(found) == 1:
        return found[0]
    rule = (
        f"{len(found)} runs begin so"
        if found
        else f"no run folder, and no run below {root} has this id"
    )
    raise RunFolderError(f"{text}: {rule} — `laggard runs` lists them")


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path` so that any reader, after any crash, sees the old file or the new
    one.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _explained(path: Path, fix: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{error.filename or path}: {error.strerror} — {fix}") from error


def _take_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _settle(unfinished: Path, draft: RunRecord) -> tuple[Path, RunRecord]:
    """Give the folder its record and its name: it appears as a whole, or not at all."""
    while True:
        record = draft.model_copy(update={"id": new_run_id(), "status": "running"})
        write_atomically(unfinished / RECORD, record.model_dump_json(indent=2).encode() + b"\n")
        path = unfinished.with_name(record.id)
        # rename(2) refuses a folder that is there and not empty, and every run folder holds its
        # lock.
        try:
            unfinished.rename(path)
        except FileExistsError:
            continue
        except OSError:
            if path.exists():
                continue
            raise
        return path, record


def _point_latest(path: Path) -> None:
    latest = path.with_name(LATEST)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if latest.is_symlink() and latest.exists() and latest.readlink().name > path.name:
            return
        beside = path.with_name(f".{LATEST}.{secrets.token_hex(4)}")
        beside.symlink_to(path.name)
        try:
            beside.replace(latest)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
    finally:
        os.close(directory)


def _sweep(scenario: Path) -> None:
    """Remove folders whose maker was killed before it had named them."""
    for left in scenario.glob(f"{_UNFINISHED}*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > _UNFINISHED_S and not _is_held(left / LOCK):
                shutil.rmtree(left)


def _read_record(path: Path) -> RunRecord:
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= _LARGEST_RECORD else b""
    except OSError as error:
        raise RunFolderError(
            f"{path}: {error.strerror} — give a run folder; `laggard runs` lists them"
        ) from error
    try:
        return RunRecord.model_validate_json(data)
    except ValidationError as error:
        raise RunFolderError(f"{path}: {_reason(data, error)}") from error


def _reason(data: bytes, error: ValidationError) -> str:
    version = re.search(rb'"schema_version"\s*:\s*(\d{1,9})\b', data)
    if version and int(version[1]) > SCHEMA_VERSION:
        return (
            f"written by a newer Laggard (schema {int(version[1])}, this one reads"
            f" {SCHEMA_VERSION}) — upgrade"
        )
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return (
        f"not a run record: {where + ': ' if where else ''}{first['msg']} — the file was changed or"
        " damaged"
    )
