"""Installation of a worker's Python environment from wheels; this program runs on the node.

`laggard.layers_services.environment.prepare` sends the file as text, so it imports the standard
library only. A node needs neither pip nor ensurepip nor internet access. An environment appears
completely or not at all, even if several runs prepare the same node at once or one is killed:

    <base>/.build-*/       environment that is being built; its builder holds a lock on it,
                            which ends with the builder's process; the next builder removes
                            a folder without a lock
    <base>/<environment>/  finished environment, renamed from the build folder; its file
                            `complete` has the number of files and bytes of its packages
    <base>/runs/           data of runs
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TypedDict

ANSWER_MARK = "laggard-answer "
_BUILD = ".build-"
# Free space that is required in addition to the unpacked wheels.
_MARGIN_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Runs in the new environment. It reads torch's version from a file, since an import takes seconds.
_CHECK = """import importlib.metadata, importlib.util, json, pathlib, runpy, sys
import laggard
wanted = json.loads(sys.argv[1])
found = {name: importlib.metadata.version(name) for name in wanted}
torch = importlib.util.find_spec("torch")
if torch is not None:
    version = pathlib.Path(torch.origin).with_name("version.py")
    found["torch"] = runpy.run_path(str(version))["__version__"]
wrong = [
    f"{name} is {found[name]} and not {wanted[name]}"
    for name in wanted if found[name] != wanted[name]
]
sys.exit("; ".join(wrong) or 0)
"""


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
        stores: folders with wheels; a leading `~` is the user's home
        base: folder of all environments; empty means `/var/tmp/laggard-<user>`
        unpacked_bytes: size of the wheels' contents
        versions: expected versions of the packages
    """

    environment: str
    wheels: list[WheelFile]
    stores: list[str]
    base: str
    unpacked_bytes: int
    versions: dict[str, str]


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
        return answer
    _remove_dead_builds(base)
    found, corrupt = _find_wheels(request)
    missing = [wheel["name"] for wheel in request["wheels"] if wheel["name"] not in found]
    if missing:
        return {"state": "missing", "missing": missing, "corrupt": corrupt}
    _require_space(base, request["unpacked_bytes"])
    with _build_folder(base) as build:
        _remove_environment(environment, build)
        made = build / "environment"
        _make_environment(made, [found[wheel["name"]] for wheel in request["wheels"]], environment)
        _check_versions(made, request["versions"])
        (made / "complete").write_text(json.dumps(_count_files(made)), encoding="ascii")
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
        known = json.loads((environment / "complete").read_text(encoding="ascii"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    return (environment / "bin" / "python").exists() and bool(known == _count_files(environment))


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
            for wheel in request["wheels"]
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


def _remove_environment(environment: Path, build: Path) -> None:
    """Move an incomplete environment into the build folder, which is removed later."""
    try:
        environment.rename(build / "broken")
    except FileNotFoundError:
        return


def _put_in_place(made: Path, environment: Path) -> None:
    try:
        # rename(2) is atomic. If it fails because another run was first, that environment is used.
        made.rename(environment)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY) or not _is_whole(environment):
            raise


def _make_environment(folder: Path, wheels: Sequence[Path], final: Path) -> None:
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    # Activation scripts contain the path of the build folder, which is wrong after the rename.
    for script in (folder / "bin").glob("[Aa]ctivate*"):
        script.unlink()
    site = folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    # Starting with the largest wheel keeps the threads evenly busy.
    largest_first = sorted(wheels, key=lambda path: path.stat().st_size, reverse=True)
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:
        for done in [
            pool.submit(_unpack_wheel, wheel, folder, site, final) for wheel in largest_first
        ]:
            done.result()


def _unpack_wheel(wheel: Path, environment: Path, site: Path, final: Path) -> None:
    """Unpack a wheel as the binary distribution format specifies, without console scripts."""
    folders: set[Path] = set()
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir():
                continue
            target = _locate_file(info.filename, environment, site)
            if target.parent not in folders:
                target.parent.mkdir(parents=True, exist_ok=True)
                folders.add(target.parent)
            with archive.open(info) as packed, target.open("wb") as file:
                start = packed.read(_CHUNK_BYTES)
                # The wheel format requires the installer to replace this line of scripts.
                if start.startswith(b"#!python"):
                    start = (
                        b"#!" + os.fsencode(final / "bin" / "python") + start[len(b"#!python") :]
                    )
                file.write(start)
                shutil.copyfileobj(packed, file, _CHUNK_BYTES)
            # The upper 16 bits of the attributes are the Unix file mode.
            if info.external_attr >> 16 & 0o111:
                target.chmod(0o755)


def _locate_file(name: str, environment: Path, site: Path) -> Path:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts:
        raise _RefusedError(f"a wheel contains a file path outside its environment: {name!r}")
    if not path.parts[0].endswith(".data"):
        return site / path
    places = {
        "purelib": site,
        "platlib": site,
        "scripts": environment / "bin",
        "data": environment,
        "headers": environment / "include",
    }
    kind = path.parts[1]
    if kind not in places or len(path.parts) < 3:
        raise _RefusedError(f"a wheel contains a file of an unknown kind: {name!r}")
    return places[kind].joinpath(*path.parts[2:])


def _check_versions(environment: Path, versions: dict[str, str]) -> None:
    command = [str(environment / "bin" / "python"), "-I", "-B", "-c", _CHECK, json.dumps(versions)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise _RefusedError(
            f"the environment does not work: {(done.stderr or done.stdout).strip()[-400:]}"
        )


def main() -> None:
    """Execute the request in the first argument and print the answer."""
    request: Request = json.loads(sys.argv[1])
    sys.stdout.write(f"\n{ANSWER_MARK}{json.dumps(install_environment(request))}\n")


if __name__ == "__main__":
    main()
