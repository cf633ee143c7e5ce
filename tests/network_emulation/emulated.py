"""Runs a function of a test module in a fresh interpreter, inside a sandbox with hosts that have no
links yet.

pytest's own process may have threads, which a sandbox refuses, and is not to be left in other
namespaces.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import pytest

import laggard
from laggard.core.hosts import Host
from laggard.network_emulation.fidelity.probes.endpoint import ProbeEndpoint

_ROOT = Path(__file__).parents[2]
_PACKAGES = Path(laggard.__file__).parents[1]
_T = TypeVar("_T")
_CAP_SYS_NICE = 23
_PR_CAPBSET_DROP = 24

needs_tun = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/net/tun", os.R_OK | os.W_OK),
    reason="needs root and /dev/net/tun",
)


@dataclass(frozen=True)
class Continuum:
    """Hosts in namespaces of their own: one cloud, one fog, two edge."""

    hosts: tuple[Host, ...]
    namespaces: Mapping[str, Path]

    @property
    def endpoints(self) -> Mapping[str, ProbeEndpoint]:
        return {
            host.name: ProbeEndpoint(self.namespaces[host.name], host.address)
            for host in self.hosts
        }

    @property
    def endpoints6(self) -> Mapping[str, ProbeEndpoint]:
        """The same hosts by their IPv6 addresses."""
        return {
            host.name: ProbeEndpoint(self.namespaces[host.name], *host.ipv6) for host in self.hosts
        }


def make_hosts(cloud: int = 1, fog: int = 1, edge: int = 2) -> tuple[Host, ...]:
    layers = ["cloud"] * cloud + ["fog"] * fog + ["edge"] * edge
    names: dict[str, int] = {}
    hosts = []
    for i, layer in enumerate(layers):
        names[layer] = names.get(layer, 0) + 1
        name = f"{layer}.trainer.1.{names[layer]}"
        addresses = {"address": f"10.77.0.{i + 1}", "ipv6": (f"fd77::{i + 1:x}",)}
        hosts.append(Host(name, layer, "trainer", 1, names[layer], **addresses))  # type: ignore[arg-type]  # by name
    return tuple(hosts)


def in_sandbox(
    function: Callable[[Continuum], _T], *, realtime: bool = True, timeout_s: float = 240.0
) -> _T:
    """The result of a module-level function, called in a sandbox; without `realtime`, real-time
    priority is not permitted."""
    program = "from tests.network_emulation import emulated; emulated.main()"
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer"
        arguments = [function.__module__, function.__name__, str(answer)]
        process = subprocess.run(
            [sys.executable, "-c", program, *arguments],
            cwd=_ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (_ROOT, _PACKAGES)))},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            preexec_fn=None if realtime else _forbid_realtime,
        )
        if process.returncode:
            pytest.fail(
                f"{function.__name__} ended with"
                f" {process.returncode}\n{process.stdout}\n{process.stderr}"
            )
        value: _T = pickle.loads(answer.read_bytes())
        return value


def _forbid_realtime() -> None:
    ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_SYS_NICE, 0, 0, 0)


def main() -> None:
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.local.namespaces import create_namespaces

    module, name, answer = sys.argv[1:]
    function = getattr(importlib.import_module(module), name)

    def controller() -> int:
        hosts = make_hosts()
        made = create_namespaces(hosts, "tun")
        continuum = Continuum(hosts, {host.name: made.path(host.name) for host in hosts})
        Path(answer).write_bytes(pickle.dumps(function(continuum)))
        return 0

    sys.exit(sandbox.run_in_sandbox(controller))
