"""Packages that the workers of a platform need, in the versions of this machine.

`uv pip compile` resolves them for another platform and Python. Two rules keep the set small. Only
packages that workers import are included: no EnOSlib, Ansible, E2Clab, matplotlib or pandas.
scikit-learn comes without its dependencies, because only its file with the images of `digits` is
read.
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from packaging.utils import canonicalize_name

from laggard.core.errors import DeploymentError, PrerequisiteError
from laggard.layers_services.environment.wheel_plan import Platform, pin_requirement

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

# The newest C library that uv knows. Which wheels a platform can use is checked at the download.
_GLIBC = "manylinux_2_40"
_INDEX_OPTIONS = {
    "index-url": "--default-index",
    "extra-index-url": "--index",
    "find-links": "--find-links",
}
"""Options of uv that stand for settings of pip."""
_NO_NETWORK = ("dns error", "error sending request", "Failed to fetch", "Connection refused")


def resolve_requirements(roots: Sequence[str], platform: Platform) -> tuple[str, ...]:
    """Return pinned requirements for distributions and all their dependencies on a platform.

    A distribution that is installed here has the version of this machine.

    Args:
        roots: names of distributions.
        platform: platform of the nodes.

    Raises:
        PrerequisiteError: a distribution, or uv, is not installed here.
        DeploymentError: no index can be reached, or no versions fit.
    """
    pins = {name: pin_requirement(name, each, platform.accelerator) for name, each in _versions()}
    names = [canonicalize_name(root) for root in roots]
    for name in names:
        if name not in pins:
            raise PrerequisiteError(
                f"{name} is not installed here, so the version for the nodes is unknown",
                f"{sys.executable} -m pip install {name}",
            )
    wanted = [pins[name] for name in names if name not in DATA_ONLY]
    data = [pins[name] for name in names if name in DATA_ONLY]
    found = _compile(wanted, pins.values(), platform)
    return tuple(sorted({*(pins.get(_name(each), each) for each in found), *data}))


def _name(requirement: str) -> str:
    return canonicalize_name(requirement.partition("==")[0])


def _versions() -> Iterator[tuple[str, str]]:
    """Yield name and version of every distribution that is installed here, but Laggard itself."""
    for each in metadata.distributions():
        name = canonicalize_name(each.name)
        if name != "laggard":
            yield name, each.version


def _compile(
    wanted: Sequence[str], constraints: Iterable[str], platform: Platform
) -> Iterator[str]:
    """Yield pinned requirements for all of these and their dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder) / "constraints.txt"
        lines = "\n".join(_spell_for_uv(each) for each in sorted(constraints))
        pins.write_text(f"{lines}\n", encoding="utf-8")
        command = (
            find_uv(),
            *("pip", "compile", "-", "--constraint", str(pins), "--only-binary", ":all:"),
            *("--no-header", "--no-annotate", "--no-config", "--no-python-downloads", "--quiet"),
            *("--python-version", ".".join(map(str, platform.python))),
            *("--python-platform", f"{platform.architecture}-{_GLIBC}"),
            # Like pip, which downloads afterwards, look for a version on all indexes.
            *("--index-strategy", "unsafe-best-match"),
            *_list_index_options(),
        )
        done = subprocess.run(
            command,
            input="\n".join(map(_spell_for_uv, wanted)),
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode != 0:
        raise _explain(done.stderr, platform)
    yield from (line for line in done.stdout.splitlines() if line and line[0].isalnum())


def _spell_for_uv(pin: str) -> str:
    # uv takes === for ==, which the build for CPUs fulfils too.
    name, plain, version = pin.partition("===")
    return f"{name}=={version},!={version}+cpu" if plain else pin


def find_uv() -> str:
    """Return the path of uv.

    Raises:
        PrerequisiteError: it is not installed here.
    """
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError) as error:
        raise PrerequisiteError(
            "uv is not installed here; it resolves the packages of the nodes",
            f"{sys.executable} -m pip install uv",
        ) from error


def pin_uv() -> str:
    """Return the requirement for the uv of this machine, which installs the packages on a node."""
    return f"uv=={metadata.version('uv')}"


def _list_index_options() -> Iterator[str]:
    """Yield the options with which uv searches where pip does, by pip's own configuration."""
    shown = subprocess.run(
        (sys.executable, "-m", "pip", "config", "list"),
        capture_output=True,
        text=True,
        check=False,
    )
    for line in shown.stdout.splitlines():
        setting, _, value = line.partition("=")
        key = setting.rpartition(".")[2]
        if key == "no-index" and ast.literal_eval(value) in ("1", "true", "yes", "on"):
            yield "--no-index"
        for each in ast.literal_eval(value).split() if key in _INDEX_OPTIONS else ():
            yield from (_INDEX_OPTIONS[key], each)


def _explain(said: str, platform: Platform) -> DeploymentError:
    """Return the error for packages that uv could not resolve."""
    lines = [line.strip().removeprefix("cause: ") for line in said.splitlines() if line.strip()]
    reason = " ".join(line for line in lines if not line.startswith("warning"))
    if any(each in said for each in _NO_NETWORK):
        return DeploymentError(
            f"the package index cannot be reached ({platform}); run once with network access, or"
            f" set pip's find-links to a folder with the wheels: {reason[-300:]}"
        )
    return DeploymentError(
        f"no versions of the workers' packages fit {platform}: {reason[:600]} — choose nodes that"
        " have them, or add wheels to pip's find-links folder"
    )
