"""Platforms that nodes will have, as far as they are known before the nodes are reserved.

Their wheels are fetched first, so that no reserved node waits for a download. A system's name tells
its Python and its C library; for other systems, the platforms of the last run on the testbed are
expected again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from laggard.core.errors import LaggardError
from laggard.core.files.output_files import write_json
from laggard.layers_services.environment.wheel_plan import Platform
from laggard.layers_services.environment.wheels import default_cache, wheel_set
from laggard.layers_services.python_versions import PythonVersion

_SYSTEMS: Mapping[str, tuple[PythonVersion, tuple[int, int]]] = {
    "debian12": ((3, 11), (2, 36)),
    "debian13": ((3, 13), (2, 41)),
    "ubuntu2404": ((3, 12), (2, 39)),
}
"""Python and C library of distributions whose Python runs workers, from their packages' pages."""

_PLATFORMS: TypeAdapter[tuple[Platform, ...]] = TypeAdapter(tuple[Platform, ...])
_MOST_BYTES = 10_000
_log = logging.getLogger(__name__)


def find_platform(system: str, architecture: str = "x86_64") -> Platform | None:
    """Return the platform of a system; None if its name tells none.

    Args:
        system: name of an image or environment, such as debian12-nfs or CC-Ubuntu24.04.
        architecture: architecture of the nodes.
    """
    plain = re.sub(r"[^a-z0-9]", "", system.lower().removeprefix("cc-"))
    for name, (python, glibc) in _SYSTEMS.items():
        if plain.startswith(name):
            return Platform(python, architecture, glibc)
    return None


def remember_platforms(
    testbed: str, platforms: Iterable[Platform], cache: Path | None = None
) -> None:
    """Record the platforms that the nodes of a testbed had."""
    path = _locate(testbed, cache)
    path.parent.mkdir(parents=True, exist_ok=True)
    unique = tuple(dict.fromkeys(platforms))
    write_json(path, _PLATFORMS.dump_python(unique, mode="json"))


def recall_platforms(testbed: str, cache: Path | None = None) -> tuple[Platform, ...]:
    """Return the platforms that the nodes of a testbed had last; none if that is not known."""
    try:
        with _locate(testbed, cache).open("rb") as file:
            return _PLATFORMS.validate_json(file.read(_MOST_BYTES))
    except (OSError, ValidationError):
        return ()


def _locate(testbed: str, cache: Path | None) -> Path:
    return (cache or default_cache()) / f"platforms-{testbed}.json"


def fetch_expected_wheels(testbed: str, expected: Iterable[Platform]) -> None:
    """Fetch the wheels for expected platforms, and for those of the testbed's last run.

    A failure is no reason to give up, since the nodes may differ from what is expected.
    """
    for platform in dict.fromkeys((*expected, *recall_platforms(testbed))):
        try:
            wheel_set(platform)
        except LaggardError as error:
            _log.warning("wheels for %s, which the nodes may need: %s", platform, error)
