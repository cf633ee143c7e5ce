"""`laggard ssh`: a shell, or a command, in a host of a running emulation."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from laggard.core.errors import InputError
from laggard.emulate.control_socket import SOCKET_NAME, ControlRequest, send_request
from laggard.layers_services.local.joining import enter_namespaces, run_inside
from laggard.run_folder.store import find_run, list_runs

_FALLBACK_SHELL = "/bin/sh"
_log = logging.getLogger(__name__)


def find_emulation(text: str | None, root: Path) -> Path:
    """The run folder of an emulation that is up.

    Args:
        text: as for `run_store.find_run`; None for the only one there is.
        root: the folder of all runs.

    Raises:
        RunFolderError: `text` names no run, or several.
        InputError: no emulation is up, or several are and none was named.
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
            f"no emulation is up in {root} — `laggard emulate SCENARIO` starts one; --runs names"
            " its folder"
        )
    raise InputError(
        f"{len(found)} emulations are up — name one with --run:"
        f" {', '.join(each.name for each in found)}"
    )


def run_in_host(folder: Path, host: str, command: Sequence[str]) -> int:
    """Run a command in a host of an emulation, on this terminal, held to the host's share.

    Args:
        folder: the emulation's run folder.
        host: the host's name, or a pattern that only it matches.
        command: the program and its arguments; none for the user's shell.

    Returns:
        The command's exit status, as a shell would tell it.

    Raises:
        RunFolderError: no emulation is up there.
        LaggardError: no such host, or it cannot be entered.
    """
    content, descriptors = send_request(folder, ControlRequest(action="enter", host=host))
    name, variables = str(content["host"]), content["environment"]
    assert isinstance(variables, dict)
    environment = {**os.environ, **{key: str(value) for key, value in variables.items()}}
    enter_namespaces(descriptors)
    interactive = not command and sys.stdin.isatty()
    chosen = tuple(command) or (os.environ.get("SHELL") or _FALLBACK_SHELL,)

    def apply_share() -> None:
        reply, _ = send_request(
            folder, ControlRequest(action="hold", host=name, interactive=interactive)
        )
        if interactive:
            address = content["address"]
            share = (
                ""
                if reply["held"]
                else "; a shell is not held to the CPU share here: give a command instead"
            )
            sys.stderr.write(f"{name} ({address}){share}\n")
            sys.stderr.flush()

    return run_inside(apply_share, chosen, environment)
