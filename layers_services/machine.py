"""A machine of a remote testbed that stands for one host of the continuum, and how to reach it by
SSH.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from laggard.core.hosts import Host


@dataclass(frozen=True)
class Access:
    """How to reach a machine by SSH.

    Attributes:
        address: name or address to connect to.
        user: who logs in there; shaping links needs root.
        port: of its SSH server.
        key: private key file; None leaves it to the user's SSH agent and configuration.
        gateway: `user@host[:port]` to jump over; empty for a direct connection.
        options: further `ssh -o` settings, such as `StrictHostKeyChecking=no`.
    """

    address: str
    user: str = "root"
    port: int = 22
    key: Path | None = None
    gateway: str = ""
    options: tuple[str, ...] = ()

    def ssh_arguments(self) -> tuple[str, ...]:
        """Arguments of ssh(1) before the command, the destination included."""
        return (*self._options("-p"), f"{self.user}@{self.address}")

    def sftp_arguments(self) -> tuple[str, ...]:
        """Arguments of sftp(1), the destination included."""
        return (*self._options("-P"), f"{self.user}@{self.address}")

    @property
    def jumps_over(self) -> str:
        """`user@host` that the connection goes through; empty for a direct one."""
        proxies = [option for option in self.options if option.startswith("ProxyCommand=")]
        return shlex.split(proxies[0])[-1] if proxies else self.gateway

    def _options(self, port_flag: str) -> tuple[str, ...]:
        key = ("-i", str(self.key)) if self.key is not None else ()
        jump = ("-J", self.gateway) if self.gateway else ()
        settings = ("BatchMode=yes", "ConnectTimeout=10", *self.options)
        return (
            port_flag,
            str(self.port),
            *key,
            *jump,
            *(word for setting in settings for word in ("-o", setting)),
        )


@dataclass(frozen=True)
class Machine:
    """A reserved machine.

    Attributes:
        host: the host of the continuum that it is; `host.address` is its address on the experiment
            network, `host.ipv6` what it says itself (`node_facts.with_ipv6`).
        access: how to reach it.
        site: where it is; machines of one site share a home folder (Grid'5000's NFS). Empty: it
            shares with nobody.
        cluster: of which cluster; empty where there are none.
    """

    host: Host
    access: Access
    site: str = ""
    cluster: str = ""

    @property
    def alias(self) -> str:
        """Its name in Ansible's inventory: the host's."""
        return self.host.name
