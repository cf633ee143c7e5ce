"""Shell or command in a host of a running emulation (`laggard ssh`)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.text.standard_streams import close_absent_descriptors
from laggard.core.text.terminal_output import print_text
from laggard.emulate.control_messages import (
    MAX_PATTERN_LENGTH,
    ControlRequest,
    EnterReply,
    HoldReply,
)
from laggard.emulate.control_socket import request_entry, send_request
from laggard.layers_services.local.held_command import SOCKET_NAME
from laggard.layers_services.local.joining import enter_namespaces, run_inside
from laggard.run_folder.store import find_run, list_runs

_FALLBACK_SHELL = "/bin/sh"
_PASSED_VARIABLES = frozenset(
    {
        "COLORTERM",
        "HOME",
        "LANG",
        "LANGUAGE",
        "LOGNAME",
        "PATH",
        "PYTHONPATH",
        "SHELL",
        "TERM",
        "TMPDIR",
        "TZ",
        "USER",
        "VIRTUAL_ENV",
    }
)
"""Variables that a command in a host gets from its caller, and all that begin with `LC_`."""
_log = logging.getLogger(__name__)


def find_emulation(text: str | None, root: Path) -> Path:
    """Return the run folder of a running emulation.

    Args:
        text: run folder or id, as for `store.find_run`; None selects the only running emulation
        root: folder of all runs

    Raises:
        RunFolderError: `text` matches no run, or several
        InputError: no emulation is running, or several are and `text` is None
    """
    if text is not None:
        return find_run(text, root)
    found = [
        folder
        for record, folder in list_runs(root)
        if record.status == "running" and (folder / SOCKET_NAME).exists()
    ]
    if len(found) == 1:
        return found[0]
    if not found:
        raise InputError(
            f"no emulation is running in {root} — start one with `laggard emulate SCENARIO`, or"
            " give its folder with --runs"
        )
    raise InputError(
        f"{len(found)} emulations are running — choose one with --run:"
        f" {', '.join(each.name for each in found)}"
    )


def run_in_host(folder: Path, host: str, command: Sequence[str]) -> int:
    """Run a command in a host of an emulation on this terminal, limited to the host's CPU share.

    Args:
        folder: run folder of the emulation
        host: name of the host, or a pattern that matches only it
        command: program and its arguments; empty for the user's shell

    Returns:
        Exit status of the command, as a shell reports it.

    Raises:
        RunFolderError: no emulation is running there
        InputError: the emulation is another user's, or there is no such host
        LaggardError: the host cannot be entered
    """
    _require_pattern(host)
    entry, descriptors = request_entry(folder, host)
    enter_namespaces(descriptors)
    interactive = not command and sys.stdin.isatty()
    chosen = tuple(command) or (os.environ.get("SHELL") or _FALLBACK_SHELL,)

    # Runs in the forked child: only there the emulation sees the process in its PID namespace.
    def apply_share() -> None:
        request = ControlRequest(action="hold", host=entry.host, interactive=interactive)
        held = send_request(folder, request, HoldReply).held
        if interactive:
            share = (
                ""
                if held
                else "; this shell is not limited to the CPU share: give a command instead"
            )
            print_text(f"{entry.host} ({entry.address}){share}", err=True)
        close_absent_descriptors()

    return run_inside(apply_share, chosen, select_environment(os.environ, entry))


def select_environment(own: Mapping[str, str], entry: EnterReply) -> dict[str, str]:
    """Return the environment of a command in a host.

    Args:
        own: environment of the caller, of which only some variables are passed
        entry: host that is entered
    """
    passed = {
        name: value
        for name, value in own.items()
        if name in _PASSED_VARIABLES or name.startswith("LC_")
    }
    added = {
        "LAGGARD_HOST": entry.host,
        "LAGGARD_ADDRESS": entry.address,
        "LAGGARD_IPV6": entry.ipv6,
        "HOME": entry.home,
        "TMPDIR": entry.temporary,
    }
    return passed | {name: value for name, value in added.items() if value is not None}


def _require_pattern(host: str) -> None:
    if len(host) > MAX_PATTERN_LENGTH or not host.isprintable():
        raise InputError(
            f"{host[:60]!a}: a host's name or pattern has at most {MAX_PATTERN_LENGTH} printable"
            " characters — `laggard links` lists the hosts"
        )
