"""Run folders `runs/<scenario>/<run-id>/`: their lock, their record, and the link `latest`.

A run holds an flock on its folder's `lock` file, from before the folder gets its name until the
run ends. If a record says `running` but no process holds the lock, the run was killed, and its
record reads as `interrupted`. The lock belongs to the open file, which forked children share.
Therefore the kernel drops it when the last process of the run is gone.

Every document is written to a temporary file and then renamed, so no reader ever sees half of one.
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

from laggard.core.errors import OutputError, RunFolderError
from laggard.core.files.disk_space import OUT_OF_SPACE, describe_os_error
from laggard.core.files.input_files import parse_json, read_bounded
from laggard.core.files.output_files import write_atomically
from laggard.core.files.reserved_space import (
    remove_padding,
    replace_by_reserve,
    reserve_space,
)
from laggard.core.run_schema import SCHEMA_VERSION, RunRecord

log = logging.getLogger(__name__)

RECORD_FILE = "run.json"
LOCK_FILE = "lock"
LATEST_LINK = "latest"
RESERVE_FILES = (".reserve-1", ".reserve-2")
"""Files of a running run whose space its last records get if the disk is full."""
_UNFINISHED_PREFIX = ".new-"
_UNFINISHED_MAX_AGE_S = 3600.0


@dataclass(frozen=True)
class RunFolder:
    """Folder of a run that this process creates; a context manager that releases the lock.

    Attributes:
        path: `runs/<scenario>/<run-id>`.
        lock_fd: descriptor whose flock shows that the run is alive; a forked process that outlives
            the run must close it.
    """

    path: Path
    lock_fd: int

    @classmethod
    def create(cls, root: Path, draft: RunRecord) -> tuple[Self, RunRecord]:
        """Create the folder of a new run, with lock and first record, and point `latest` at it.

        Args:
            root: folder of all runs; created if missing.
            draft: first record; its id and status are replaced.

        Returns:
            The folder, and the written record.

        Raises:
            RunFolderError: the folder cannot be created there.
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
                for name in RESERVE_FILES:
                    reserve_space(unfinished / name)
                path, record = _finalize_folder(unfinished, draft)
                undo.callback(shutil.rmtree, path, ignore_errors=True)
                _point_latest(path)
                # The folder is complete, so nothing is undone.
                undo.pop_all()
        return cls(path, lock_fd), record

    @classmethod
    def reopen(cls, path: Path) -> Self | None:
        """Lock the folder of a run that was killed; return None if a process holds the lock.

        Raises:
            RunFolderError: the lock cannot be opened.
        """
        with _explain_os_errors(path / LOCK_FILE, "check the folder's owner and permissions"):
            # O_NOFOLLOW and O_NONBLOCK, since the folder may come from a stranger.
            flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            descriptor = os.open(path / LOCK_FILE, flags)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
        return cls(path, descriptor)

    @property
    def scenario(self) -> Path:
        """Return the folder of the scenario's files, as run."""
        return self.path / "scenario"

    @property
    def logs(self) -> Path:
        """Return the folder of the logs."""
        return self.path / "logs"

    def write_record(self, record: RunRecord) -> None:
        """Replace `run.json` atomically.

        Raises:
            OutputError: the file cannot be written (the disk is full, or the folder is gone).
        """
        content = record.model_dump_json(indent=2).encode() + b"\n"
        with _report_unwritten(self.path):
            try:
                write_atomically(self.path / RECORD_FILE, content)
            except OSError as error:
                if error.errno not in OUT_OF_SPACE:
                    raise
                reserves = [self.path / name for name in RESERVE_FILES]
                replace_by_reserve(reserves, self.path / RECORD_FILE, content)

    def write_files(self, files: Mapping[str, bytes], below: Path) -> None:
        """Write files below a folder of this run; names may contain subfolders.

        Raises:
            OutputError: a file cannot be written.
        """
        with _report_unwritten(below):
            for name, content in files.items():
                target = below / name
                target.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(target, content)

    def close(self) -> None:
        """Release the lock; the last record must be written before."""
        for name in RESERVE_FILES:
            with contextlib.suppress(OSError):
                (self.path / name).unlink()
        with contextlib.suppress(OSError):
            remove_padding(self.path / RECORD_FILE)
        with contextlib.suppress(OSError):
            os.close(self.lock_fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def new_run_id(now: datetime | None = None) -> str:
    """Return a unique id that sorts by time (UTC, to the millisecond)."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond // 1000:03d}Z-{secrets.token_hex(3)}"


def to_folder_name(scenario: str) -> str:
    """Convert a scenario's name to a folder name.

    Characters that shells and file systems treat specially are replaced.
    """
    safe_name = re.sub(r"[^A-Za-z0-9._-]+", "-", scenario).lstrip(".-")[:100]
    return safe_name or "scenario"


def load_record(path: Path) -> RunRecord:
    """Read the record of a run folder; a killed run gets the status `interrupted`.

    Args:
        path: the folder, or its `run.json`.

    Raises:
        RunFolderError: the path is not a run folder, or its record is damaged.
    """
    folder = path.parent if path.name == RECORD_FILE else path
    record = _read_record(folder / RECORD_FILE)
    if record.status != "running" or _is_locked(folder / LOCK_FILE):
        return record
    # The run may have ended between reading the record and testing the lock. It writes its last
    # record before it releases the lock, so a second read is final.
    record = _read_record(folder / RECORD_FILE)
    if record.status != "running":
        return record
    return record.model_copy(
        update={"status": "interrupted", "error": record.error or "the run was killed"}
    )


def list_runs(root: Path) -> list[tuple[RunRecord, Path]]:
    """Return every run in `root` with its folder, the newest last.

    A record that cannot be read is logged and left out.

    Raises:
        RunFolderError: `root` exists but cannot be listed, or is no folder.
    """
    if not root.exists():
        return []
    if not root.is_dir():
        raise RunFolderError(f"{root}: not a folder — choose a folder with --runs")
    with _explain_os_errors(root, "choose another folder with --runs"):
        folders = sorted(record.parent for record in root.glob(f"*/*/{RECORD_FILE}"))
    found: list[tuple[RunRecord, Path]] = []
    for folder in folders:
        if folder.is_symlink() or folder.name.startswith(_UNFINISHED_PREFIX):
            continue
        try:
            found.append((load_record(folder), folder))
        except RunFolderError as error:
            log.warning("a run was left out of the list: %s", error)
    return sorted(found, key=lambda entry: (entry[0].id, str(entry[1])))


def find_run(text: str, root: Path) -> Path:
    """Find the run folder that a user means.

    Args:
        text: a path, a run id or the beginning of one, or the name of a scenario for its latest
            run.
        root: folder of all runs.

    Raises:
        RunFolderError: no run or several runs match.
    """
    path = Path(text)
    if (path / RECORD_FILE).is_file():
        return path.resolve()
    if text and (root / text / LATEST_LINK / RECORD_FILE).is_file():
        latest = (root / text / LATEST_LINK).resolve()
        if latest.parent != (root / text).resolve():
            raise RunFolderError(
                f"{root / text / LATEST_LINK}: points to {latest}, outside of its folder — give the"
                " folder of the run itself"
            )
        return latest
    if path.is_dir():
        raise RunFolderError(
            f"{text}: this folder has no {RECORD_FILE}, so it is not a run folder — give the folder"
            " of one run, a scenario's name or a run id"
        )
    found = [folder for _, folder in list_runs(root) if text and folder.name.startswith(text)]
    if len(found) == 1:
        return found[0]
    rule = (
        f"{len(found)} runs begin with this id"
        if found
        else f"not a run folder, and no run in {root} has this id"
    )
    raise RunFolderError(f"{text}: {rule} — `laggard runs` lists them")


@contextlib.contextmanager
def _explain_os_errors(path: Path, fix: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{error.filename or path}: {error.strerror} — {fix}") from error


@contextlib.contextmanager
def _report_unwritten(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise OutputError(describe_os_error(error)) from error


def _acquire_lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def _is_locked(path: Path) -> bool:
    try:
        # Without O_NONBLOCK, opening a named pipe would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
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
    """Give the folder its record and its name; it appears with all its content, or not at all."""
    while True:
        record = draft.model_copy(update={"id": new_run_id(), "status": "running"})
        write_atomically(
            unfinished / RECORD_FILE, record.model_dump_json(indent=2).encode() + b"\n"
        )
        path = unfinished.with_name(record.id)
        # rename(2) refuses to replace a folder that is not empty, and every run folder contains its
        # lock: two runs can never get the same id.
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
    """Point the link `latest` at a run folder, unless it names a newer one."""
    latest = path.with_name(LATEST_LINK)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Two runs may start at the same time. Ids sort by time, so the link never moves back to the
        # older run.
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
    """Remove folders whose creator was killed before it had named them."""
    for unfinished in scenario.glob(f"{_UNFINISHED_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - unfinished.stat().st_mtime > _UNFINISHED_MAX_AGE_S and not _is_locked(
                unfinished / LOCK_FILE
            ):
                shutil.rmtree(unfinished)


def _read_record(path: Path) -> RunRecord:
    if not path.exists():
        raise RunFolderError(f"{path}: no such file — give a run folder; `laggard runs` lists them")
    data = read_bounded(path)
    try:
        return RunRecord.model_validate(parse_json(data))
    except (ValueError, RecursionError) as error:
        raise RunFolderError(f"{path}: {_explain_invalid_record(data, error)}") from error


def _explain_invalid_record(data: bytes, error: Exception) -> str:
    # A record of a newer version may be invalid for any reason, so its version is read first.
    version = re.search(rb'"schema_version"\s*:\s*(\d{1,9})\b', data)
    if version and int(version[1]) > SCHEMA_VERSION:
        return (
            f"written by a newer Laggard (schema {int(version[1])}; this version reads schema"
            f" {SCHEMA_VERSION} and older) — upgrade Laggard"
        )
    if not isinstance(error, ValidationError):
        return f"not a run record: {error} — the file was changed or cut short; copy it again"
    first = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return (
        f"not a run record: {where + ': ' if where else ''}{first['msg']} — the file was changed or"
        " damaged: restore it from a copy"
    )
