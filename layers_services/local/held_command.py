"""Start of a command that is limited to a host's CPU share, for Ansible's tasks in the sandbox.

It asks the emulation over the control socket in its run folder. It imports the standard library
only and runs isolated, since it starts before every task.
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET_NAME = "control.sock"
_REPLY_TIMEOUT_S = 90.0


def request_hold(folder: str, host: str) -> None:
    """Ask for this process to be held to a host's share.

    Args:
        folder: run folder of the emulation.
        host: name of the host.

    Raises:
        SystemExit: the emulation refuses or does not answer.
    """
    # The address of a socket is limited to 107 bytes, which a path can exceed.
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_REPLY_TIMEOUT_S)
        connection.connect(f"/proc/self/fd/{directory}/{SOCKET_NAME}")
        connection.sendall(json.dumps({"action": "hold", "host": host}).encode() + b"\n")
        with connection.makefile("rb") as stream:
            reply = json.loads(stream.readline() or b"{}")
    if reply.get("held") is not True:
        reason = reply.get("error", "the emulation has ended")
        sys.exit(f"the program cannot be held to the CPU share of {host}: {reason}")


def run_held(folder: str, host: str, command: list[str]) -> None:
    """Have this process held to a host's share, and replace it by a command.

    Args:
        folder: run folder of the emulation.
        host: name of the host.
        command: program and its arguments.

    Raises:
        SystemExit: the emulation refuses or does not answer.
    """
    request_hold(folder, host)
    os.execvp(command[0], command)  # noqa: S606 - the command of the user's own play


if __name__ == "__main__":
    run_held(sys.argv[1], sys.argv[2], sys.argv[3:])
