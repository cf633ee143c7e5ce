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

from laggard.core.atomic_write import write_atomically
from laggard.core.errors import RunFolderError
from laggard.core.run_schema import SCHEMA_VERSION, RunRecord

log = logging.getLogger(__name__)

RECORD_FILE = "run.json"
LOCK_FILE = "lock"
LATEST_LINK = "latest"
_UNFINISHED_PREFIX = ".new-"
_UNFINISHED_MAX_AGE_S = 3600.0
_MAX_RECORD_BYTES = 64 << 20


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
        scenario = root / to_folder_name(draft.scenario)
        with _explain_os_errors(scenario, "choose another folder with --runs"):
            scenario.mkdir(parents=True, exist_ok=True)
            _remove_unfinished(scenario)
            unfinished = scenario / f"{_UNFINISHED_PREFIX}{secrets.token_hex(8)}"
            unfinished.mkdir()
            with contextlib.ExitStack() as undo:
                undo.callback(shutil.rmtree, unfinished, ignore_errors=True)
                lock_fd = _acquire_lock(unfinished / LOCK_FILE)
                undo.callback(os.close, lock_fd)
                path, record = _finalize_folder(unfinished, draft)
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
        with _explain_os_errors(self.path, "make room there"):
            write_atomically(
                self.path / RECORD_FILE, record.model_dump_json(indent=2).encode() + b"\n"
            )

    def write_scenario(self, files: Mapping[str, bytes]) -> None:
        """Keep the scenario's files as run; names may lead into folders below.

        Raises:
            RunFolderError: they cannot be written.
        """
        with _explain_os_errors(self.scenario, "make room there"):
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


def to_folder_name(scenario: str) -> str:
    """A scenario's name as a folder name, without what shells and file systems treat specially."""
    safe_name = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario).lstrip(".-")[:100]
    return safe_name or "scenario"


def load_record(path: Path) -> RunRecord:
    """The record of a run folder, with `interrupted` inferred.

    Args:
        path: the folder, or its `run.json`.

    Raises:
        RunFolderError: no run folder, or a record that is not one.
    """
    folder = path.parent if path.name == RECORD_FILE else path
    record = _read_record(folder / RECORD_FILE)
    if record.status != "running" or _is_locked(folder / LOCK_FILE):
        return record
    # It may have ended between the two looks; a run writes its last record before it lets go of the
    # lock.
    record = _read_record(folder / RECORD_FILE)
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
    with _explain_os_errors(root, "choose another folder with --runs"):
        folders = sorted(record.parent for record in root.glob(f"*/*/{RECORD_FILE}"))
    found: list[tuple[RunRecord, Path]] = []
    for folder in folders:
        if folder.is_symlink() or folder.name.startswith(_UNFINISHED_PREFIX):
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
    if (path / RECORD_FILE).is_file():
        return path.resolve()
    if (root / text / LATEST_LINK / RECORD_FILE).is_file():
        return (root / text / LATEST_LINK).resolve()
    if path.is_dir():
        raise RunFolderError(
            f"{text}: there is no {RECORD_FILE} in it — name the folder of one run, or a scenario"
            " or run id"
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


@contextlib.contextmanager
def _explain_os_errors(path: Path, fix: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{error.filename or path}: {error.strerror} — {fix}") from error


def _acquire_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _is_locked(path: Path) -> bool:
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


def _finalize_folder(unfinished: Path, draft: RunRecord) -> tuple[Path, RunRecord]:
    """Give the folder its record and its name: it appears as a whole, or not at all."""
    while True:
        record = draft.model_copy(update={"id": new_run_id(), "status": "running"})
        write_atomically(
            unfinished / RECORD_FILE, record.model_dump_json(indent=2).encode() + b"\n"
        )
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
    latest = path.with_name(LATEST_LINK)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        if latest.is_symlink() and latest.exists() and latest.readlink().name > path.name:
            return
        temporary = path.with_name(f".{LATEST_LINK}.{secrets.token_hex(4)}")
        temporary.symlink_to(path.name)
        try:
            temporary.replace(latest)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    finally:
        os.close(directory)


def _remove_unfinished(scenario: Path) -> None:
    """Remove folders whose maker was killed before it had named them."""
    for unfinished in scenario.glob(f"{_UNFINISHED_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - unfinished.stat().st_mtime > _UNFINISHED_MAX_AGE_S and not _is_locked(
                unfinished / LOCK_FILE
            ):
                shutil.rmtree(unfinished)


def _read_record(path: Path) -> RunRecord:
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= _MAX_RECORD_BYTES else b""
    except OSError as error:
        raise RunFolderError(
            f"{path}: {error.strerror} — give a run folder; `laggard runs` lists them"
        ) from error
    try:
        return RunRecord.model_validate_json(data)
    except ValidationError as error:
        raise RunFolderError(f"{path}: {_explain_invalid_record(data, error)}") from error


def _explain_invalid_record(data: bytes, error: ValidationError) -> str:
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
