"""Ansible connection into a host's network and UTS namespaces, without sshd."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.connection.local import Connection as LocalConnection

DOCUMENTATION = """
    name: laggard_namespace
    short_description: run in a host's namespaces
    description:
        - Runs tasks in the network and UTS namespaces of a host of Laggard's local testbed.
    author: Laggard
    extends_documentation_fragment:
        - connection_pipelining
    options:
        namespace:
            description: name of the files that the host's namespaces are bound to.
            required: true
            type: string
            vars:
                - name: laggard_namespace
        control_folder:
            description: run folder of the emulation that holds tasks to their host's CPU share.
            type: string
            env:
                - name: LAGGARD_CONTROL_FOLDER
"""

_NETWORK = Path("/run/netns")
_HOST_NAME = Path("/run/uts")
_HELD_COMMAND = Path(__file__).parents[1] / "held_command.py"


class Connection(LocalConnection):  # type: ignore[misc] # ansible-core ships no types
    """Connection that runs a shell in the host's namespaces; files are shared with the machine."""

    transport = "laggard_namespace"

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)
        # The sandbox maps its user to root, so `become: true` has no effect.
        self.default_user = "root"

    def exec_command(
        self, cmd: str, in_data: bytes | None = None, sudoable: bool = True
    ) -> tuple[int, bytes, bytes]:
        """Run `cmd` as one shell command inside the namespaces."""
        name = self.get_option("namespace")
        network, host_name = _NETWORK / name, _HOST_NAME / name
        for path in (network, host_name):
            # Without this check, the command would run on the machine itself.
            if not path.exists():
                raise AnsibleConnectionFailure(f"host {name} has no namespace file {path}")
        # One quoted argument; otherwise only the first part of a compound command would run inside.
        namespaces = ["nsenter", f"--net={network}", f"--uts={host_name}", "--"]
        entered = shlex.join([*self._list_hold_words(name), *namespaces, "/bin/sh", "-c", cmd])
        result: tuple[int, bytes, bytes] = super().exec_command(
            entered, in_data=in_data, sudoable=sudoable
        )
        return result

    def _list_hold_words(self, name: str) -> list[str]:
        """Return the words that hold a command to the host's CPU share, or none."""
        folder = self.get_option("control_folder")
        if not folder:
            return []
        return [sys.executable, "-I", "-S", str(_HELD_COMMAND), folder, name]
