"""Programs of Flower: their words, and the environment that they need."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import InputError
from laggard.workloads.plan import ENVIRONMENT
from laggard.workloads.specification.flower_app import FlowerApp

CONNECTION = "laggard"
"""Name of the connection in Flower's configuration file."""

SUPERLINK_PORT = 8000
_LEAST_VERSION = (1, 42)
"""First version whose programs all speak HTTP on one port, and take `--host` and `--port`."""

_VERSION = re.compile(r"(\d{1,6})\.(\d{1,6})")
_VERSION_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class AppPrograms:
    """Programs of the environment of an app.

    Attributes:
        app: the app.
        server: address of the host of its server.
    """

    app: FlowerApp
    server: str

    @property
    def _address(self) -> str:
        host = f"[{self.server}]" if ":" in self.server else self.server
        return f"{host}:{SUPERLINK_PORT}"

    @property
    def _bin(self) -> Path:
        return Path(self.app.python).parent

    def _path(self, program: str) -> str:
        return str(self._bin / program)

    def start_superlink(self) -> tuple[str, ...]:
        """Return the words that start the SuperLink."""
        listens = ("--host", self.server, "--port", str(SUPERLINK_PORT))
        own = "--disable-runtime-dependency-installation"
        return (self._path("flower-superlink"), "--insecure", *listens, own)

    def start_supernode(self, client: int, clients: int) -> tuple[str, ...]:
        """Return the words that start the SuperNode of a client."""
        config = f"partition-id={client} num-partitions={clients}"
        link = ("--insecure", "--superlink", self._address)
        return (self._path("flower-supernode"), *link, "--node-config", config)

    def list_supernodes(self) -> tuple[str, ...]:
        """Return the words that list the SuperNodes as JSON."""
        return (self._path("flwr"), "supernode", "list", CONNECTION, "--format", "json")

    def run_app(self) -> tuple[str, ...]:
        """Return the words that run the app, and print its output until it ends."""
        return (self._path("flwr"), "run", self.app.flower, CONNECTION, "--stream")

    def list_runs(self) -> tuple[str, ...]:
        """Return the words that list the runs of the SuperLink as JSON."""
        return (self._path("flwr"), "ls", CONNECTION, "--format", "json")

    def create_environment(self, home: Path) -> Mapping[str, str]:
        """Return the environment of a program, which keeps its files in a folder of its own."""
        return {
            **os.environ,
            **ENVIRONMENT,
            "PATH": f"{self._bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "HOME": str(home),
            "FLWR_HOME": str(home),
            "FLWR_TELEMETRY_ENABLED": "0",
            "PYTHONUNBUFFERED": "1",
        }

    def format_configuration(self) -> str:
        """Return Flower's configuration file, which names the SuperLink."""
        return (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n'
            f'[superlink.{CONNECTION}]\naddress = "{self._address}"\ninsecure = true\n'
        )


def read_flower_version(app: FlowerApp) -> str:
    """Return the version of Flower in the environment of an app.

    Raises:
        InputError: there is none, or one that is too old.
    """
    python = Path(app.python)
    program = python.with_name("flower-superlink")
    fix = f"run `{python} -m pip install 'flwr>={_format_version(_LEAST_VERSION)}'`"
    if not python.is_file():
        raise InputError(
            f"workload.python: {python} does not exist — create it with `python3 -m venv"
            f" {python.parents[1]}`, and {fix}"
        )
    if not program.is_file():
        raise InputError(f"workload.python: Flower is not installed beside {python} — {fix}")
    try:
        ended = subprocess.run(
            [program, "--version"],
            check=False,
            capture_output=True,
            timeout=_VERSION_TIMEOUT_S,
            env={**os.environ, "FLWR_TELEMETRY_ENABLED": "0"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"workload.python: {program} does not run ({error}) — {fix}") from error
    found = _VERSION.search(ended.stdout.decode(errors="replace"))
    if ended.returncode or found is None:
        reason = ended.stderr.decode(errors="replace").strip()[-200:]
        raise InputError(f"workload.python: {program} does not run: {reason} — {fix}")
    version = int(found[1]), int(found[2])
    if version < _LEAST_VERSION:
        raise InputError(f"workload.python: Flower {_format_version(version)} is too old — {fix}")
    return _format_version(version)


def _format_version(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
