"""Installation of a worker's Python environment from wheels; this program runs on the node.

`laggard.layers_services.environment.prepare` sends the file as text, so it imports the standard
library only. A node needs neither pip nor internet access: uv comes with the wheels. An
environment appears completely or not at all, even if several runs prepare the same node at once or
one is killed:

    <base>/.build-*/       environment that is being built; its builder holds a lock on it,
                            which ends with the builder's process; the next builder removes
                            a folder without a lock
    <base>/<environment>/  finished environment, renamed from the build folder; its file
                            `complete` has the number of files and bytes of its packages, and
                            the time of its last use; after two weeks a builder removes it
    <base>/runs/           data of runs
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypedDict

ANSWER_MARK = "laggard-answer "
_BUILD = ".build-"
# Free space that is required in addition to the unpacked wheels.
_MARGIN_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_COMPLETE = "complete"
_KEPT_S = 14 * 86400.0


class WheelFile(TypedDict):
    """Wheel: its name in the store, its size in bytes and its SHA-256."""

    name: str
    size: int
    sha256: str


class Request(TypedDict):
    """Environment to install.

    Attributes:
        environment: name of the environment's folder
        wheels: wheels to install
        uv: wheel with the program that installs them
        stores: folders with wheels; a leading `~` is the user's home
        base: folder of all environments; empty means `/var/tmp/laggard-<user>`
        unpacked_bytes: size of the wheels' contents
    """

    environment: str
    wheels: list[WheelFile]
    uv: WheelFile
    stores: list[str]
    base: str
    unpacked_bytes: int


class InstallAnswer(TypedDict, total=False):
    """Result of a request.

    `state` is `ready` (existed before), `built`, `missing` (no store has an intact copy of the
    wheels in `missing`; those in `corrupt` are damaged) or `refused` (for the given `reason`).
    """

    state: str
    python: str
    runs: str
    missing: list[str]
    corrupt: list[str]
    reason: str


class _RefusedError(Exception):
    pass


def install_environment(request: Request) -> InstallAnswer:
    """Build the environment unless it exists."""
    try:
        return _install_environment(request)
    except _RefusedError as error:
        return {"state": "refused", "reason": str(error)}
    except OSError as error:
        if error.errno in _FULL:
            return {"state": "refused", "reason": f"the disk is full: {error}"}
        raise


def _install_environment(request: Request) -> InstallAnswer:
    base = _own_folder(request["base"])
    environment = base / request["environment"]
    runs = base / "runs"
    runs.mkdir(exist_ok=True)
    answer: InstallAnswer = {
        "python": str(environment / "bin" / "python"),
        "runs": str(runs),
        "state": "ready",
    }
    if _is_whole(environment):
        _record_use(environment)
        return answer
    _remove_dead_builds(base)
    found, corrupt = _find_wheels(request)
    needed = [*request["wheels"], request["uv"]]
    missing = [wheel["name"] for wheel in needed if wheel["name"] not in found]
    if missing:
        return {"state": "missing", "missing": missing, "corrupt": corrupt}
    _require_space(base, request["unpacked_bytes"])
    with _build_folder(base) as build:
        _remove_environment(environment, build / "broken")
        _prune(base, build)
        made, uv = build / "environment", request["uv"]["name"]
        wheels = {name: path for name, path in found.items() if name != uv}
        _make_environment(made, wheels, found[uv], build)
        (made / _COMPLETE).write_text(json.dumps(_count_files(made)), encoding="ascii")
        _put_in_place(made, environment)
    return {**answer, "state": "built"}


def _own_folder(base: str) -> Path:
    user = pwd.getpwuid(os.geteuid()).pw_name
    folder = Path(base or f"/var/tmp/laggard-{user}")  # noqa: S108 - ownership is checked
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(folder)
    if not folder.is_dir() or folder.is_symlink() or status.st_uid != os.geteuid():
        raise _RefusedError(
            f"{folder} belongs to another user, so its contents cannot be trusted: remove it"
        )
    return folder


def _is_whole(environment: Path) -> bool:
    """Return whether the environment exists with all its files.

    A cleaner of /var/tmp may have removed old files.
    """
    try:
        known = json.loads((environment / _COMPLETE).read_text(encoding="ascii"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return (environment / "bin" / "python").exists() and bool(known == _count_files(environment))


def _record_use(environment: Path) -> None:
    # An environment in the image of a node's system may be read-only; nobody removes that one.
    try:
        (environment / _COMPLETE).touch()
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise


def _count_files(environment: Path) -> list[int]:
    """Return the number of files and bytes under `lib`, without the bytecode that Python adds."""
    files = size = 0
    for folder, folders, names in os.walk(environment / "lib"):
        folders[:] = [name for name in folders if name != "__pycache__"]
        files += len(names)
        # `Path` objects would take seconds for 15,000 files.
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in names)  # noqa: PTH118
    return [files, size]


def _find_wheels(request: Request) -> tuple[dict[str, Path], list[str]]:
    """Return the paths of intact wheels by name, and the names of damaged wheels."""
    found: dict[str, Path] = {}
    corrupt: list[str] = []
    for store in request["stores"]:
        folder = Path(store).expanduser()
        listed = _list_names(folder)
        wanted = [
            wheel
            for wheel in (*request["wheels"], request["uv"])
            if wheel["name"] in listed and wheel["name"] not in found
        ]
        for wheel in wanted:
            path = folder / wheel["name"]
            if path.stat().st_size == wheel["size"] and _hash_file(path) == wheel["sha256"]:
                found[wheel["name"]] = path
            else:
                corrupt.append(wheel["name"])
    return found, [name for name in corrupt if name not in found]


def _list_names(folder: Path) -> set[str]:
    # Listing the folder makes an NFS client query the server. Otherwise its cache would report a
    # new file as absent for up to a minute.
    try:
        return set(os.listdir(folder))  # noqa: PTH208 - names only
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return set()


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _require_space(base: Path, unpacked_bytes: int) -> None:
    free = shutil.disk_usage(base).free
    if free < unpacked_bytes + _MARGIN_BYTES:
        need = (unpacked_bytes + _MARGIN_BYTES) / 1e6
        raise _RefusedError(
            f"the disk is full: {base} has {free / 1e6:.0f} MB free, and the environment needs"
            f" {need:.0f} MB"
        )


@contextmanager
def _build_folder(base: Path) -> Iterator[Path]:
    path, lock = _locked_folder(base)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked_folder(base: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=_BUILD, dir=base))
        lock = _try_lock(path)
        if lock is not None and path.exists():
            return path, lock
        if lock is not None:  # another builder removed the folder before it was locked
            os.close(lock)


def _try_lock(folder: Path) -> int | None:
    """Return a descriptor that locks the folder; None if the folder is gone or already locked."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_dead_builds(base: Path) -> None:
    for path in base.glob(f"{_BUILD}*"):
        lock = _try_lock(path)
        if lock is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _remove_environment(environment: Path, removed: Path) -> None:
    """Move an environment into the build folder, which is removed later."""
    try:
        environment.rename(removed)
    except FileNotFoundError:
        return


def _prune(base: Path, build: Path) -> None:
    """Remove the environments that no run has used for a long time."""
    oldest_s = time.time() - _KEPT_S
    for complete in base.glob(f"*/{_COMPLETE}"):
        if complete.stat().st_mtime < oldest_s:
            _remove_environment(complete.parent, build / complete.parent.name)


def _put_in_place(made: Path, environment: Path) -> None:
    try:
        # rename(2) is atomic. If it fails because another run was first, that environment is used.
        made.rename(environment)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not _is_whole(environment):
            raise


def _make_environment(folder: Path, wheels: dict[str, Path], uv: Path, build: Path) -> None:
    """Install wheels into a new environment that can be moved, with the uv of another wheel."""
    program = _extract_uv(uv, build)
    # The names in a store begin with digests. uv reads the versions in the names.
    links = build / "wheels"
    links.mkdir()
    for name, path in wheels.items():
        (links / re.sub("^[0-9a-f]{16}-", "", name)).symlink_to(path)
    options = ("--no-config", "--offline", "--quiet", "--cache-dir", str(build / "cache"))
    python = str(folder / "bin" / "python")
    _run(program, "venv", *options, "--relocatable", "--python", sys.executable, str(folder))
    _run(
        *(program, "pip", "install", *options, "--no-deps", "--no-index", "--link-mode=hardlink"),
        *("--python", python, *map(str, sorted(links.iterdir()))),
    )
    _run(python, "-I", "-B", "-c", "import laggard")


def _extract_uv(wheel: Path, build: Path) -> str:
    """Extract the program of uv from its wheel and return its path."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".data/scripts/uv"))
        with archive.open(name) as packed, (build / "uv").open("wb") as file:
            shutil.copyfileobj(packed, file, _CHUNK_BYTES)
    (build / "uv").chmod(0o700)
    return str(build / "uv")


def _run(*command: str) -> None:
    """Run a program; refuse the request with its message if it fails."""
    # uv would create its folders below a home, which a user of a node need not have.
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        full = any(each in said for each in ("No space left", "Disk quota exceeded"))
        raise _RefusedError(
            f"{'the disk is full' if full else 'the environment does not work'}: {said[-400:]}"
        )


def main() -> None:
    """Execute the request in the first argument and print the answer."""
    request: Request = json.loads(sys.argv[1])
    sys.stdout.write(f"\n{ANSWER_MARK}{json.dumps(install_environment(request))}\n")


if __name__ == "__main__":
    main()
