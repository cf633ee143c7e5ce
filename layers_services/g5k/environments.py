"""Python versions of the systems that can be deployed on nodes of Grid'5000.

The names of the testbed's Kadeploy environments begin with the distribution, as in `debian12-nfs`
or `ubuntu2204-min`. A user's own environment may have any name, so nothing is said about others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from laggard.core.edits import write_value
from laggard.core.errors import Problem
from laggard.core.yaml_source import YamlSource
from laggard.layers_services.g5k.request import G5kOptions
from laggard.layers_services.python_versions import (
    SUPPORTED_PYTHONS,
    PythonVersion,
    format_supported_pythons,
)

RECOMMENDED = "debian12-nfs"

PYTHONS: Mapping[str, PythonVersion] = {
    "debian9": (3, 5), "debian10": (3, 7), "debian11": (3, 9), "debian12": (3, 11),
    "debian13": (3, 13), "ubuntu1804": (3, 6), "ubuntu2004": (3, 8), "ubuntu2204": (3, 10),
    "ubuntu2404": (3, 12), "centos7": (3, 6), "centos8": (3, 6), "centosstream8": (3, 6),
    "centosstream9": (3, 9), "rocky8": (3, 6), "rocky9": (3, 9), "almalinux8": (3, 6),
    "almalinux9": (3, 9),
}  # fmt: skip
"""Version of `python3` in each distribution's own packages."""


def find_python(env_name: str) -> PythonVersion | None:
    """Return the Python version of an environment of the testbed; None if it is unknown."""
    return PYTHONS.get(re.split("[-_]", env_name.lower(), maxsplit=1)[0])


def environment_warnings(
    env_name: str | None, options: G5kOptions, source: YamlSource
) -> Iterator[Problem]:
    """Yield a warning if workers cannot run on the Python of the deployed system.

    Args:
        env_name: name of the environment; None for the standard system of the nodes.
        options: options of the command line, which have priority over the file.
        source: location of the setting in its file.
    """
    version = None if env_name is None else find_python(env_name)
    if version is None or version in SUPPORTED_PYTHONS:
        return
    rule = (
        f"this system has Python {version[0]}.{version[1]}, and workers need Python"
        f" {format_supported_pythons()}"
    )
    shown = f"env_name: {env_name}"
    if options.env_name is not None:
        yield Problem("--env-name", 0, 0, shown, rule, f"deploy {RECOMMENDED}")
        return
    key = ("environment", "g5k", "env_name")
    yield source.locate_problem(
        key, rule, write_value(key, RECOMMENDED, f"deploy {RECOMMENDED}"), shown
    )
