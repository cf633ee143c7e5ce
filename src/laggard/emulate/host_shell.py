"""Shell or command in a host of a running emulation (`laggard ssh`)."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.text.terminal_output import print_text
from laggard.emulate.control_socket import SOCKET_NAME, ControlRequest, send_request
from laggard.layers_services.local.joining import enter_namespaces, run_inside
from laggard.run_folder.store import find_run, list_runs

_FALLBACK_SHELL = "/bin/sh"
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
        LaggardError: there is no such host, or it cannot be entered
    """
    content, descriptors = send_request(folder, ControlRequest(action="enter", host=host))
    name, variables = str(content["host"]), content["environment"]
    assert isinstance(variables, dict)
    environment = {**os.environ, **{key: str(value) for key, value in variables.items()}}
    enter_namespaces(descriptors)
    interactive = not command and sys.stdin.isatty()
    chosen = tuple(command) or (os.environ.get("SHELL") or _FALLBACK_SHELL,)

    # Runs in the forked child: only there the emulation sees the process in its PID namespace.
    def apply_share() -> None:
        reply, _ = send_request(
            folder, ControlRequest(action="hold", host=name, interactive=interactive)
        )
        if interactive:
            address = content["address"]
            share = (
                ""
                if reply["held"]
                else "; this shell is not limited to the CPU share: give a command instead"
            )
            print_text(f"{name} ({address}){share}", err=True)
            sys.stderr.flush()

    return run_inside(apply_share, chosen, environment)
