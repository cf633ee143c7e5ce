"""Which wheels a node's workers need, and how pip is asked for them; nothing here is fetched.

Two rules keep the set small: only what workers import (no EnOSlib, Ansible, E2Clab, matplotlib,
pandas), and scikit-learn without what it needs itself, since of it only the file with the images of
`digits` is read.
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
from laggard.layers_services.environment.node_facts import PythonVersion

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
"""Distributions of which only files are read, so nothing that they depend on is needed."""

_OLDEST_MANYLINUX = {"x86_64": 5, "aarch64": 17}
_LEGACY_TAGS = {5: "manylinux1", 12: "manylinux2010", 17: "manylinux2014"}
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
    """What wheels have to fit.

    Attributes:
        python: version of CPython.
        architecture: `x86_64` or `aarch64`.
        glibc: version of the GNU C library, the oldest on which they shall work.
        accelerator: `cuda` for PyTorch with CUDA and NCCL.
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
    """A distribution: its version and the requirements that it names (PEP 508)."""

    version: str
    requires: tuple[str, ...]


def platform_tags(platform: Platform) -> tuple[str, ...]:
    """The platform tags of wheels that work there (PEP 600 and its legacy names), best first.

    Args:
        platform: with its oldest C library.
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
    """What to ask pip for: the roots and everything that they need on a platform, each pinned.

    Args:
        roots: normalised names.
        known: what is known of distributions, by normalised name.
        pins: versions to take, by normalised name; what has none is taken as its dependents ask for
            it.
        platform: against which markers are evaluated.

    Returns:
        Requirements, sorted; distributions that are not known are among them, what they need is
        not.
    """
    specifiers: dict[str, SpecifierSet] = {}
    followed: set[tuple[str, str]] = set()
    queue = [Requirement(root) for root in roots]
    while queue:
        requirement = queue.pop()
        name = canonicalize_name(requirement.name)
        specifiers[name] = specifiers.get(name, SpecifierSet()) & requirement.specifier
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
    """A requirement for exactly a version; PyTorch comes in several builds of one version.

    Plain `torch==2.13.0` is with CUDA on PyPI and without elsewhere: `+cpu` is always the small
    one, `===` always the plain one.
    """
    if name != "torch":
        return f"{name}=={version}"
    public = Version(version).public
    return f"torch=={public}+cpu" if accelerator == "cpu" else f"torch==={public}"


def pip_command(
    wanted: Sequence[str], platform: Platform, folder: Path, extra_indexes: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command that downloads exactly these wheels for a platform; pip's own settings say from
    where.

    Args:
        wanted: pinned requirements.
        platform: of the nodes.
        folder: where the wheels go.
        extra_indexes: where to look besides.
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
    """Why pip did not get the wheels, as an error that names the distribution and the platform.

    Args:
        said: its standard error.
        wanted: what it was asked for.
        platform: for which.
    """
    if "No module named pip" in said:
        return PrerequisiteError(
            "pip, which fetches the nodes' wheels, is not installed here",
            f"{sys.executable} -m ensurepip",
        )
    missing = re.search(r"No matching distribution found for (\S+)", said)
    which = missing[1] if missing else ", ".join(wanted)
    if any(reason in said for reason in _NO_NETWORK):
        fix = (
            "run once where there is a network, or set pip's find-links to a folder with the wheel"
        )
        return DeploymentError(f"{which}: the package index cannot be reached ({platform}); {fix}")
    if missing:
        versions = re.search(r"\(from versions: ([^)]*)\)", said)
        offered = versions[1].split(", ")[-1] if versions else "none"
        fix = "choose nodes for which there is one, or put it where pip looks (find-links)"
        return DeploymentError(
            f"{which}: no wheel for {platform}; the newest that is offered: {offered}; {fix}"
        )
    last = said.strip().splitlines()[-1:] or ["pip gives no reason"]
    return DeploymentError(f"{which}: pip could not fetch it for {platform}: {last[0]}")
