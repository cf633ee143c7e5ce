"""Seconds that the preparation of a node without internet takes, part by part.

    python benchmarks/node_preparation.py [repeats]

This machine plays the node: its installer gets the wheels from a folder, as on a node, and an empty
folder for environments. Wheels are fetched with the package index that pip is configured for.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from laggard.layers_services.environment.install_on_node import ANSWER_MARK
from laggard.layers_services.environment.prepare import STORE, install_command
from laggard.layers_services.environment.wheels import Platform, WheelSet, wheel_set

PLATFORM = Platform((sys.version_info[0], sys.version_info[1]), os.uname().machine, (2, 36))
IMPORTED = "laggard.remote.agent.main, laggard.workloads.worker"

T = TypeVar("T")


def time_part(part: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of a call, and what it returned."""
    began_s = time.perf_counter()
    returned = part()
    return time.perf_counter() - began_s, returned


def install(wheels: WheelSet, node: Path) -> str:
    """Run the installer of nodes and return the state that it answers."""
    command = install_command(sys.executable, wheels, (str(node),), str(node))
    said = subprocess.run(["sh", "-c", command], check=True, capture_output=True, text=True).stdout
    return said.partition(ANSWER_MARK)[2]


def measure() -> Mapping[str, float]:
    """Return the seconds of every part."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache, node = folder / "cache", folder / "node"
        fetched_s, wheels = time_part(lambda: wheel_set(PLATFORM, cache=cache))
        cached_s, _ = time_part(lambda: wheel_set(PLATFORM, cache=cache))
        (node / STORE).mkdir(parents=True)
        for wheel in wheels.files:
            (node / STORE / wheel.stored_name).symlink_to(wheel.path)
        installed_s, answer = time_part(lambda: install(wheels, node))
        assert '"built"' in answer, answer
        ready_s, answer = time_part(lambda: install(wheels, node))
        assert '"ready"' in answer, answer
        python = str(node / wheels.hash / "bin" / "python")
        first = [python, "-c", f"import {IMPORTED}"]
        imported_s, _ = time_part(lambda: subprocess.run(first, check=True, cwd=folder))
    return {
        "resolve and fetch": fetched_s,
        "from the cache": cached_s,
        "install": installed_s,
        "find it installed": ready_s,
        "first import": imported_s,
        "MB sent": wheels.size / 1e6,
    }


def main() -> None:
    """Print a table of medians with the smallest and largest values."""
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    found = [measure() for _ in range(repeats)]
    print(f"| part | seconds (median of {repeats}) | from | to |")
    print("|---|---|---|---|")
    for part in found[0]:
        values = [each[part] for each in found]
        print(
            f"| {part} | {statistics.median(values):.2f} | {min(values):.2f} | {max(values):.2f} |"
        )


if __name__ == "__main__":
    main()
