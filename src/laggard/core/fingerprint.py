"""Fingerprint of a run: versions, commit, and machine properties that affect speed."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

Fact = str | float | int | None

PACKAGES = ("laggard", "torch", "enoslib", "e2clab", "ansible-core", "numpy", "pyarrow", "pandas")


def list_versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Return the version of Python and of each installed package that can change a result."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def git_commit(folder: Path) -> str | None:
    """Return the commit of `folder`; None outside a repository.

    `-dirty` is appended if there are uncommitted changes.
    """
    git = shutil.which("git")
    if git is None:
        return None
    command = [
        git,
        "-C",
        str(folder),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        # No tag may match, so that the answer is always a hash.
        "--exclude=*",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    return answer.stdout.strip() or None


def describe_machine() -> dict[str, Fact]:
    """Return this machine's kernel, processor, frequency governor, SMT, memory, disk and GPU."""
    import psutil

    return {
        "kernel": platform.release(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "governor": _read_fact("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "smt": _read_fact("/sys/devices/system/cpu/smt/control"),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "disk": _disk_kind(),
        "gpu": _first_line(Path("/proc/driver/nvidia/version")),
    }


def _read_fact(path: str) -> str | None:
    return _first_line(Path(path))


def _first_line(path: Path) -> str | None:
    try:
        return path.read_text().splitlines()[0].strip()
    except (OSError, IndexError):
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None
    )


def _disk_kind() -> str | None:
    rotational = {_first_line(path) for path in Path("/sys/block").glob("[svn]*/queue/rotational")}
    if not rotational:
        return None
    return "rotational" if "1" in rotational else "solid state"
