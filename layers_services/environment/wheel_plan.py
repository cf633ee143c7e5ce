"""Platforms of nodes, and the pip command that downloads wheels for them; nothing is downloaded."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.version import Version

from laggard.core.errors import DeploymentError, PrerequisiteError
from laggard.layers_services.python_versions import PythonVersion

ARCHITECTURES = ("x86_64", "aarch64")
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
