"""The pinned wheels that a worker needs, of the versions installed here: Laggard itself, and what
`wheel_plan` says.

Nodes have no internet, so wheels are fetched here, for the nodes' platform, kept, and travel.
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
_MOST_ROUNDS = 8
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Wheel:
    """One wheel in the cache: file, size in bytes, SHA-256."""

    path: Path
    size: int
    sha256: str

    @property
    def stored_name(self) -> str:
        """Its name in a node's store: by content, so that what has not changed does not travel
        again.
        """
        return f"{self.sha256[:16]}-{self.path.name}"


@dataclass(frozen=True)
class WheelSet:
    """All wheels of an environment.

    Attributes:
        platform: for which they are.
        files: the wheels.
        versions: of every distribution, by its normalised name.
        unpacked_bytes: what they hold.
        hash: names the environment: the same for the same wheels and Python.
    """

    platform: Platform
    files: tuple[Wheel, ...]
    versions: Mapping[str, str]
    unpacked_bytes: int
    hash: str

    @property
    def size(self) -> int:
        """Bytes of all wheels, as they travel."""
        return sum(wheel.size for wheel in self.files)


def wheel_set(
    platform: Platform,
    distributions: Sequence[str] = WORKER_DISTRIBUTIONS,
    cache: Path | None = None,
) -> WheelSet:
    """The wheels for a platform, fetched unless the cache has them.

    Args:
        platform: of the nodes.
        distributions: what workers need besides Laggard; what these need themselves is added.
        cache: `$XDG_CACHE_HOME/laggard/wheels` where it is not given.

    Raises:
        DeploymentError: no index can be reached, or has a wheel for this platform.
        PrerequisiteError: pip, or a distribution whose version is to be taken, is not installed
            here.
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
            f"{folder}: the wheels there change while they are read — remove the folder"
        )
    return _build_wheel_set(
        [*fetched, _describe_wheel(build_own_wheel(cache / "laggard"))], platform
    )


def default_cache() -> Path:
    """`$XDG_CACHE_HOME/laggard/wheels`, which is under `~/.cache` where the variable is not set."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "laggard" / "wheels"


def installed_closure(roots: Iterable[str]) -> Mapping[str, Installed]:
    """The distributions installed here that the roots need on any platform, with any extra.

    Raises:
        PrerequisiteError: a root is not installed.
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
                    f"{name} is not installed here, so its version for nodes is unknown", fix
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
    """Download into a folder of its own, which takes its name when everything is there.

    Wheels for another platform can need what those installed here do not (CUDA's libraries): so
    what the downloaded ones say is what counts, round after round.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True
    ) as name:
        there = Path(name)
        # PyTorch's builds need different things, and the one installed here may be another.
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
    except OSError as error:  # another run fetched the same meanwhile, or what is there is broken
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        if _read_cached_wheels(folder) is None:
            folder.rename(made / "broken")
            made.rename(folder)
            shutil.rmtree(folder / "broken")


def _read_cached_wheels(folder: Path) -> list[Wheel] | None:
    """The wheels of a folder; None unless all are there as they were fetched."""
    try:
        digests = json.loads((folder / _MANIFEST).read_text(encoding="ascii"))
        wheels = [_describe_wheel(folder / name) for name in digests]
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return wheels if {wheel.path.name: wheel.sha256 for wheel in wheels} == digests else None


def _describe_wheel(path: Path) -> Wheel:
    return Wheel(path, path.stat().st_size, _hash_file(path))


def _select_wheels(folder: Path, wanted: Sequence[str]) -> dict[str, Path]:
    """The downloaded wheels that are wanted, by name."""
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
            _log.info("%s is not where pip looks; trying %s", torch[0], CPU_TORCH_INDEX)
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
