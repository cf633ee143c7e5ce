"""Pinned wheels that a worker needs, in the versions installed on this machine.

They are Laggard itself and the distributions of `resolve.py`. Nodes have no internet access.
Therefore this machine downloads the wheels for the nodes' platform, caches them, and sends them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.utils import parse_wheel_filename
from pydantic import TypeAdapter, ValidationError

from laggard.core.errors import DeploymentError
from laggard.core.files.output_files import write_json
from laggard.layers_services.environment.own_wheel import build_own_wheel
from laggard.layers_services.environment.resolve import (
    WORKER_DISTRIBUTIONS,
    pin_uv,
    resolve_requirements,
)
from laggard.layers_services.environment.wheel_plan import (
    Platform,
    download_error,
    pip_command,
)

__all__ = [
    "CPU_TORCH_INDEX",
    "Platform",
    "Wheel",
    "WheelSet",
    "default_cache",
    "wheel_set",
]

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

_MANIFEST = "sha256.json"
_RESOLVED: TypeAdapter[list[str]] = TypeAdapter(list[str])
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wheel:
    """Wheel in the cache: its file, size in bytes and SHA-256."""

    path: Path
    size: int
    sha256: str

    @property
    def stored_name(self) -> str:
        """Return the wheel's name in a node's store.

        The name depends on the content, so an unchanged wheel is not sent again.
        """
        return f"{self.sha256[:16]}-{self.path.name}"


@dataclass(frozen=True)
class WheelSet:
    """Wheels of one environment.

    Attributes:
        platform: platform that the wheels support
        files: the wheels, that of uv among them
        versions: version of every distribution, by normalized name
        unpacked_bytes: size of the wheels' contents
        hash: name of the environment; equal for equal wheels and Python versions
    """

    platform: Platform
    files: tuple[Wheel, ...]
    versions: Mapping[str, str]
    unpacked_bytes: int
    hash: str

    @property
    def uv(self) -> Wheel:
        """Return the wheel of uv, which installs the others."""
        return next(wheel for wheel in self.files if _is_uv(wheel))

    @property
    def packages(self) -> tuple[Wheel, ...]:
        """Return the wheels that are installed."""
        return tuple(wheel for wheel in self.files if not _is_uv(wheel))

    @property
    def size(self) -> int:
        """Return the size of all wheel files in bytes."""
        return sum(wheel.size for wheel in self.files)


def _is_uv(wheel: Wheel) -> bool:
    return wheel.path.name.startswith("uv-")


def wheel_set(
    platform: Platform,
    distributions: Sequence[str] = WORKER_DISTRIBUTIONS,
    cache: Path | None = None,
) -> WheelSet:
    """Return the wheels for a platform, downloaded unless they are cached.

    Args:
        platform: platform of the nodes
        distributions: distributions that workers need besides Laggard; their dependencies are
            added
        cache: cache folder; by default `$XDG_CACHE_HOME/laggard/wheels`

    Raises:
        DeploymentError: no index can be reached, or none has a wheel for this platform
        PrerequisiteError: pip or uv, or a distribution whose installed version is needed, is not
            installed on this machine
    """
    cache = cache or default_cache()
    wanted = _resolve_once(distributions, platform, cache)
    folder = cache / _hash_text([*wanted, str(platform)])
    fetched = _read_cached_wheels(folder)
    if fetched is None:
        _fetch_wheels(wanted, platform, folder)
        fetched = _read_cached_wheels(folder)
    if fetched is None:
        raise DeploymentError(
            f"{folder}: the cached wheels changed while they were read — remove the folder"
        )
    own = _describe_wheel(build_own_wheel(cache / "laggard"))
    return _build_wheel_set([*fetched, own], platform)


def _resolve_once(distributions: Sequence[str], platform: Platform, cache: Path) -> tuple[str, ...]:
    """Resolve the wanted packages, or read what was found for the same installed packages."""
    installed = sorted(f"{each.name}=={each.version}" for each in metadata.distributions())
    named = [*sorted(distributions), str(platform), *installed]
    known = cache / f"resolved-{_hash_text(named)}.json"
    try:
        return tuple(_RESOLVED.validate_json(known.read_bytes()))
    except (OSError, ValidationError):
        pass
    wanted = (*resolve_requirements(distributions, platform), pin_uv())
    known.parent.mkdir(parents=True, exist_ok=True)
    # Concurrent runs may write the same file; none may read a part of it.
    write_json(known, wanted)
    return wanted


def default_cache() -> Path:
    """Return `$XDG_CACHE_HOME/laggard/wheels`; the variable defaults to `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "laggard" / "wheels"


def _hash_text(parts: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _fetch_wheels(wanted: Sequence[str], platform: Platform, folder: Path) -> None:
    """Download into a temporary folder and rename it when all wheels are complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
    ) as name:
        there = Path(name)
        _download_wheels(wanted, platform, there)
        digests = {path.name: _hash_file(path) for path in sorted(there.glob("*.whl"))}
        (there / _MANIFEST).write_text(json.dumps(digests, indent=1), encoding="ascii")
        _take_name(there, folder)


def _take_name(made: Path, folder: Path) -> None:
    try:
        made.rename(folder)
    except OSError as error:  # another run has downloaded the same set, or the folder is damaged
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if _read_cached_wheels(folder) is None:
            folder.rename(made / "broken")
            made.rename(folder)
            shutil.rmtree(folder / "broken")


def _read_cached_wheels(folder: Path) -> list[Wheel] | None:
    """Return the wheels of a folder; None unless all of them are intact."""
    try:
        digests = json.loads((folder / _MANIFEST).read_text(encoding="ascii"))
        wheels = [_describe_wheel(folder / name) for name in digests]
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return wheels if {wheel.path.name: wheel.sha256 for wheel in wheels} == digests else None


def _describe_wheel(path: Path) -> Wheel:
    return Wheel(path, path.stat().st_size, _hash_file(path))


def _download_wheels(wanted: Sequence[str], platform: Platform, folder: Path) -> None:
    torch = [text for text in wanted if text.startswith("torch=")]
    others = [text for text in wanted if text not in torch]
    if others:
        _run_pip(others, platform, folder, ())
    if torch and platform.accelerator == "cpu":
        try:
            _run_pip(torch, platform, folder, ())
        except DeploymentError:
            _log.info("%s is not on pip's index; trying %s", torch[0], CPU_TORCH_INDEX)
            _run_pip(torch, platform, folder, (CPU_TORCH_INDEX,))
    elif torch:
        _run_pip(torch, platform, folder, ())


def _run_pip(
    wanted: Sequence[str], platform: Platform, folder: Path, extra_indexes: Sequence[str]
) -> None:
    command = pip_command(wanted, platform, folder, extra_indexes)
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        raise download_error(done.stderr, wanted, platform)


def _build_wheel_set(wheels: Sequence[Wheel], platform: Platform) -> WheelSet:
    parsed = (parse_wheel_filename(wheel.path.name) for wheel in wheels)
    versions = {str(name): str(version) for name, version, _, _ in parsed}
    contents = sorted((wheel.path.name, wheel.sha256) for wheel in wheels)
    named = json.dumps([contents, platform.python]).encode()
    unpacked = sum(_unpacked_bytes(wheel.path) for wheel in wheels)
    return WheelSet(
        platform, tuple(wheels), versions, unpacked, hashlib.sha256(named).hexdigest()[:16]
    )


def _unpacked_bytes(path: Path) -> int:
    with zipfile.ZipFile(path) as archive:
        return sum(info.file_size for info in archive.infolist())


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
