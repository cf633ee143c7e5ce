"""Selection of the wheels that a node's workers need, and the pip command that downloads them.

This module downloads nothing. Two rules keep the set small. Only packages that workers import are
included: no EnOSlib, Ansible, E2Clab, matplotlib or pandas. scikit-learn comes without its
dependencies, because only its file with the images of `digits` is read.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from laggard.core.errors import DeploymentError, PrerequisiteError
from laggard.layers_services.python_versions import PythonVersion

ARCHITECTURES = ("x86_64", "aarch64")
WORKER_DISTRIBUTIONS = (
    "numpy",
    "pillow",
    "psutil",
    "pyarrow",
    "pydantic",
    "pyroute2",
    "pyzmq",
    "ruamel.yaml",
    "scikit-learn",
    "torch",
)
DATA_ONLY = frozenset({"scikit-learn"})
"""Distributions that are used only for their data files, so their dependencies are not needed."""

# Minor version of the oldest glibc 2.x of any manylinux tag, per architecture (PEP 513, 599).
_OLDEST_MANYLINUX = {"x86_64": 5, "aarch64": 17}
_LEGACY_TAGS = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
# Parts of pip's output that indicate an unreachable index instead of a missing wheel.
_NO_NETWORK = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Connection refused",
    "Network is unreachable",
    "timed out",
    "ProxyError",
    "SSLError",
)

Accelerator = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Platform:
    """Platform that wheels must support.

    Attributes:
        python: version of CPython
        architecture: `x86_64` or `aarch64`
        glibc: oldest version of the GNU C library that the wheels must support
        accelerator: `cuda` for PyTorch with CUDA and NCCL, else `cpu`
    """

    python: PythonVersion
    architecture: str
    glibc: tuple[int, int]
    accelerator: Accelerator = "cpu"

    def __str__(self) -> str:
        python, glibc = ".".join(map(str, self.python)), ".".join(map(str, self.glibc))
        return f"Python {python}, {self.architecture}, glibc {glibc}, {self.accelerator}"


@dataclass(frozen=True)
class Installed:
    """Installed distribution: its version and its requirements (PEP 508)."""

    version: str
    requires: tuple[str, ...]


def platform_tags(platform: Platform) -> tuple[str, ...]:
    """Return the tags of wheels that work on a platform (PEP 600 and legacy names), best first.

    Args:
        platform: platform with its oldest C library
    """
    architecture, (major, minor) = platform.architecture, platform.glibc
    tags: list[str] = []
    for each in range(minor, _OLDEST_MANYLINUX[architecture] - 1, -1):
        tags.append(f"manylinux_{major}_{each}_{architecture}")
        if each in _LEGACY_TAGS:
            tags.append(f"{_LEGACY_TAGS[each]}_{architecture}")
    return (*tags, f"linux_{architecture}")


def resolve_requirements(
    roots: Iterable[str],
    known: Mapping[str, Installed],
    pins: Mapping[str, str],
    platform: Platform,
) -> tuple[str, ...]:
    """Return pinned requirements for the roots and for all their dependencies on a platform.

    Args:
        roots: normalized names
        known: version and requirements of distributions, by normalized name
        pins: versions to use, by normalized name; a distribution without a pin gets the version
            range of its dependents
        platform: platform for which markers are evaluated

    Returns:
        Sorted requirements. Distributions missing from `known` are included, without their
        dependencies.
    """
    specifiers: dict[str, SpecifierSet] = {}
    followed: set[tuple[str, str]] = set()
    queue = [Requirement(root) for root in roots]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        specifiers[name] = specifiers.get(name, SpecifierSet()) & requirement.specifier
        # Each distribution is followed once per extra, so that circular requirements end.
        for extra in {"", *requirement.extras} - {
            extra for other, extra in followed if other == name
        }:
            followed.add((name, extra))
            if name in known and name not in DATA_ONLY:
                queue += _list_needed(known[name].requires, extra, platform)
    pinned_here = {
        name: pin_requirement(name, pins[name], platform.accelerator)
        for name in specifiers
        if name in pins
    }
    return tuple(
        sorted(
            pinned_here.get(name, f"{name}{specifier}") for name, specifier in specifiers.items()
        )
    )


def _list_needed(requires: Iterable[str], extra: str, platform: Platform) -> Iterator[Requirement]:
    environment = _marker_environment(platform) | {"extra": extra}
    for text in requires:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate(environment):
            yield requirement


def _marker_environment(platform: Platform) -> dict[str, str]:
    python = ".".join(map(str, platform.python))
    target = {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": platform.architecture,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
    }
    return {key: str(value) for key, value in default_environment().items()} | target


def pin_requirement(name: str, version: str, accelerator: Accelerator) -> str:
    """Return a requirement for exactly one version.

    PyTorch has several builds of one version. Plain `torch==2.13.0` includes CUDA on PyPI and
    excludes it on other indexes. `+cpu` always selects the small build and `===` always the plain
    one.
    """
    if name != "torch":
        return f"{name}=={version}"
    public = Version(version).public
    return f"torch=={public}+cpu" if accelerator == "cpu" else f"torch==={public}"


def pip_command(
    wanted: Sequence[str], platform: Platform, folder: Path, extra_indexes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Return the command that downloads exactly these wheels for a platform.

    pip's own configuration selects the index.

    Args:
        wanted: pinned requirements
        platform: platform of the nodes
        folder: folder for the downloaded wheels
        extra_indexes: additional indexes to search
    """
    return (
        sys.executable,
        *("-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--quiet"),
        *("--no-deps", "--only-binary=:all:", "--implementation", "cp"),
        *("--python-version", ".".join(map(str, platform.python))),
        *(word for tag in platform_tags(platform) for word in ("--platform", tag)),
        *(word for index in extra_indexes for word in ("--extra-index-url", index)),
        *("--dest", str(folder)),
        *wanted,
    )


def download_error(
    said: str, wanted: Sequence[str], platform: Platform
) -> DeploymentError | PrerequisiteError:
    """Return the error for a failed download, which names the distribution and the platform.

    Args:
        said: standard error of pip
        wanted: requirements that pip was asked for
        platform: platform that pip was asked for
    """
    if "No module named pip" in said:
        return PrerequisiteError(
            "pip is not installed here; it downloads the wheels for the nodes",
            f"{sys.executable} -m ensurepip",
        )
    missing = re.search(r"No matching distribution found for (\S+)", said)
    which = missing[1] if missing else ", ".join(wanted)
    if any(reason in said for reason in _NO_NETWORK):
        fix = "run once with network access, or set pip's find-links to a folder with the wheel"
        return DeploymentError(f"{which}: the package index cannot be reached ({platform}); {fix}")
    if missing:
        versions = re.search(r"\(from versions: ([^)]*)\)", said)
        offered = versions[1].split(", ")[-1] if versions else "none"
        fix = "choose nodes that have one, or add a wheel to pip's find-links folder"
        return DeploymentError(
            f"{which}: no wheel exists for {platform}; newest available version: {offered}; {fix}"
        )
    last = said.strip().splitlines()[-1:] or ["pip gave no reason"]
    return DeploymentError(f"{which}: pip could not download it for {platform}: {last[0]}")
