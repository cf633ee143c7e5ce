"""Pinned wheels that a worker needs, in the versions installed on this machine.

They are Laggard itself and the distributions of `wheel_plan`. Nodes have no internet access.
Therefore this machine downloads the wheels for the nodes' platform, caches them, and sends them.
"""

from __future__ import annotations

import email.parser
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from laggard.core.errors import DeploymentError, PrerequisiteError
from laggard.layers_services.environment.own_wheel import build_own_wheel
from laggard.layers_services.environment.wheel_plan import (
    WORKER_DISTRIBUTIONS,
    Installed,
    Platform,
    download_error,
    pip_command,
    resolve_requirements,
)

__all__ = [
    "CPU_TORCH_INDEX",
    "Platform",
    "Wheel",
    "WheelSet",
    "default_cache",
    "installed_closure",
    "wheel_set",
]

CPU_TORCH_INDEX = "https://download.pytorch.org/whl/cpu"

_MANIFEST = "sha256.json"
# Each round follows requirements one level deeper. The limit ends requirements that never settle.
_MOST_ROUNDS = 8
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
        files: the wheels
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
    def size(self) -> int:
        """Return the size of all wheel files in bytes."""
        return sum(wheel.size for wheel in self.files)


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
        PrerequisiteError: pip, or a distribution whose installed version is needed, is not
            installed on this machine
    """
    cache = cache or default_cache()
    known = installed_closure(distributions)
    pins = {name: each.version for name, each in known.items()}
    folder = cache / _compute_cache_key(
        resolve_requirements(distributions, known, pins, platform), platform
    )
    fetched = _read_cached_wheels(folder)
    if fetched is None:
        _fetch_wheels(distributions, known, pins, platform, folder)
        fetched = _read_cached_wheels(folder)
    if fetched is None:
        raise DeploymentError(
            f"{folder}: the cached wheels changed while they were read — remove the folder"
        )
    return _build_wheel_set(
        [*fetched, _describe_wheel(build_own_wheel(cache / "laggard"))], platform
    )


def default_cache() -> Path:
    """Return `$XDG_CACHE_HOME/laggard/wheels`; the variable defaults to `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "laggard" / "wheels"


def installed_closure(roots: Iterable[str]) -> Mapping[str, Installed]:
    """Return the installed distributions that the roots need on any platform, with any extra.

    Raises:
        PrerequisiteError: a root is not installed
    """
    found: dict[str, Installed] = {}
    queue = [canonicalize_name(root) for root in roots]
    needed = set(queue)
    while queue:
        name = queue.pop()
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError as error:
            if name in needed:
                fix = f"{sys.executable} -m pip install {name}"
                raise PrerequisiteError(
                    f"{name} is not installed here, so the version for the nodes is unknown", fix
                ) from error
            continue
        requires = tuple(distribution.requires or ())
        found[name] = Installed(distribution.version, requires)
        queue += [
            other
            for text in requires
            if (other := canonicalize_name(Requirement(text).name)) not in found
        ]
    return found


def _compute_cache_key(wanted: Sequence[str], platform: Platform) -> str:
    named = json.dumps([wanted, asdict(platform)], sort_keys=True)
    return hashlib.sha256(named.encode()).hexdigest()[:16]


def _fetch_wheels(
    distributions: Sequence[str],
    known: Mapping[str, Installed],
    pins: Mapping[str, str],
    platform: Platform,
    folder: Path,
) -> None:
    """Download into a temporary folder and rename it when all wheels are complete.

    Wheels for another platform can have requirements that the locally installed ones lack, such as
    CUDA's libraries. Therefore the metadata of downloaded wheels is followed, round after round.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
    ) as name:
        there = Path(name)
        # PyTorch's builds have different requirements, and the local build may be another one.
        all_known = {name: each for name, each in known.items() if name != "torch"}
        asked: set[str] = set()
        for _ in range(_MOST_ROUNDS):
            wanted = resolve_requirements(distributions, all_known, pins, platform)
            if asked.issuperset(wanted):
                break
            _download_wheels(sorted(set(wanted) - asked), platform, there)
            asked |= set(wanted)
            all_known |= {
                name: _read_metadata(path) for name, path in _select_wheels(there, wanted).items()
            }
        chosen = set(_select_wheels(there, wanted).values())
        for path in there.glob("*.whl"):
            if path not in chosen:
                path.unlink()
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


def _select_wheels(folder: Path, wanted: Sequence[str]) -> dict[str, Path]:
    """Return the downloaded wheels that match the requirements, by name."""
    specifiers = {
        canonicalize_name(each.name): each.specifier
        for each in (Requirement(text) for text in wanted)
    }
    found: dict[str, tuple[Version, Path]] = {}
    for path in folder.glob("*.whl"):
        name, version, _, _ = parse_wheel_filename(path.name)
        fits = name in specifiers and specifiers[name].contains(version, prereleases=True)
        if fits and (name not in found or found[name][0] < version):
            found[name] = (version, path)
    return {name: path for name, (_, path) in found.items()}


def _read_metadata(wheel: Path) -> Installed:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (
            each for each in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each)
        )
        fields = email.parser.BytesParser().parsebytes(archive.read(name), headersonly=True)
    return Installed(
        str(fields["Version"]), tuple(str(text) for text in fields.get_all("Requires-Dist", []))
    )


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
