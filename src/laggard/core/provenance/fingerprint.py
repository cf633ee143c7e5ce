"""Fingerprint of a run: versions, and machine properties that affect speed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

Fact = str | float | int | None

PACKAGES = (
    "laggard",
    "torch",
    "enoslib",
    "e2clab",
    "ansible-core",
    "numpy",
    "pyarrow",
    "pandas",
    "scipy",
    "scikit-learn",
    "pyzmq",
    "pyroute2",
    "pydantic",
)
"""Packages that can change a result."""


def list_versions(
    packages: Iterable[str] = PACKAGES, modules: Iterable[str] = ()
) -> dict[str, str]:
    """Return the versions of Python, the C library and installed packages.

    Args:
        packages: names of packages; those that are not installed are left out.
        modules: names of Python modules, whose packages are added.
    """
    found = {"python": platform.python_version()}
    library, version = platform.libc_ver()
    if version:
        found[library or "libc"] = version
    for package in (*packages, *_find_packages(modules)):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _find_packages(modules: Iterable[str]) -> Iterable[str]:
    names = {module.partition(".")[0] for module in modules}
    # The search reads the file lists of all packages, so it is made only if needed.
    owners = metadata.packages_distributions() if names else {}
    return sorted({package for name in names for package in owners.get(name, ())})


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
