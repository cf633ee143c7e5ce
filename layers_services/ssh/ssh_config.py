"""Configuration file for all ssh connections of a run (ssh_config(5)).

With it, ssh and Ansible reach a machine in the same way, by its host's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laggard.core.files.output_files import write_text
from laggard.layers_services.machine import Machine

CONNECT_TIMEOUT_S = 15
KEEP_ALIVE_S = 10


def ssh_config(machines: Sequence[Machine]) -> str:
    """Return the text of the file, with one entry per machine under its host's name.

    `Access.options` decides whether host keys are checked.
    """
    common = [
        # ssh uses the first value of each setting, so the entries of machines precede this one.
        "Host *",
        "    BatchMode yes",
        "    LogLevel ERROR",
        f"    ConnectTimeout {CONNECT_TIMEOUT_S}",
        f"    ServerAliveInterval {KEEP_ALIVE_S}",
        "    ServerAliveCountMax 3",
        "    RequestTTY no",
    ]
    return (
        "\n".join([*(line for machine in machines for line in _format_entry(machine)), *common])
        + "\n"
    )


def _format_entry(machine: Machine) -> list[str]:
    access = machine.access
    key = (
        [f'    IdentityFile "{access.key}"', "    IdentitiesOnly yes"]
        if access.key is not None
        else []
    )
    jump = [f"    ProxyJump {access.gateway}"] if access.gateway else []
    options = [
        f"    {name} {value}"
        for name, _, value in (option.partition("=") for option in access.options)
    ]
    return [
        f"Host {machine.alias}",
        f"    HostName {access.address}",
        f"    User {access.user}",
        f"    Port {access.port}",
        *key,
        *jump,
        *options,
    ]


def write_ssh_config(machines: Sequence[Machine], path: Path) -> Path:
    """Write the file with permissions for its owner only, as ssh requires."""
    write_text(path, ssh_config(machines), mode=0o600)
    return path
