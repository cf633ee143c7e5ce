"""The first login on a machine that was just reserved, which may still be starting."""

from __future__ import annotations

import subprocess
import time

from laggard.core.errors import DeploymentError
from laggard.layers_services.machine import Access

_LOGIN_S = 30.0
_PAUSE_S = 3.0
_MOST_SHOWN = 200


def await_login(access: Access, command: str, timeout_s: float) -> str:
    """Run a command on a machine as soon as it answers SSH, and return what it prints.

    Args:
        access: SSH access to the machine.
        command: command for the machine's shell.
        timeout_s: longest wait, in seconds.

    Raises:
        DeploymentError: the machine did not answer in time.
    """
    deadline_s = time.monotonic() + timeout_s
    while True:
        said = "no answer"
        try:
            done = subprocess.run(
                ("ssh", *access.ssh_arguments(), command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_LOGIN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            pass
        else:
            if done.returncode == 0:
                return done.stdout
            said = done.stderr.strip()[-_MOST_SHOWN:]
        if time.monotonic() > deadline_s:
            raise DeploymentError(
                f"{access.address} did not answer SSH within {timeout_s:.0f} s: {said}"
            )
        time.sleep(_PAUSE_S)
