"""Machine of a remote testbed that takes the place of one host, and its SSH access."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host

_SSH_NAME = re.compile(r"[A-Za-z0-9_\[][A-Za-z0-9_.:@%,\[\]-]*", re.ASCII)
"""Characters of users, addresses and jump hosts, which become part of ssh's configuration."""


@dataclass(frozen=True)
class Access:
    """SSH access to one machine.

    Attributes:
        address: name or address to connect to
        user: user to log in as; traffic shaping needs root
        port: port of the machine's SSH server
        key: private key file; with None, the user's SSH agent and configuration choose the key
        gateway: `user@host[:port]` of the jump host; empty for a direct connection
        options: further `ssh -o` settings, such as those of `ssh/host_keys.py`

    Raises:
        DeploymentError: a value could be taken for another setting of ssh
    """

    address: str
    user: str = "root"
    port: int = 22
    key: Path | None = None
    gateway: str = ""
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the values, some of which come from a testbed's API."""
        for value in (self.address, self.user, self.gateway or "none"):
            if not _SSH_NAME.fullmatch(value):
                raise DeploymentError(f"{value[:100]!a} is no user, address or jump host of ssh")
        if not all(option.isprintable() for option in self.options):
            raise DeploymentError("a setting of ssh has unprintable characters")

    def ssh_arguments(self) -> tuple[str, ...]:
        """Return the arguments of ssh(1) that precede the command, including the destination."""
        return (*self._options(), f"{self.user}@{self.address}")

    @property
    def jumps_over(self) -> str:
        """Return `user@host` of the jump host; empty for a direct connection.

        A `ProxyCommand` option takes precedence over `gateway`.
        """
        proxies = [option for option in self.options if option.startswith("ProxyCommand=")]
        return shlex.split(proxies[0])[-1] if proxies else self.gateway

    def _options(self) -> tuple[str, ...]:
        key = ("-i", str(self.key)) if self.key is not None else ()
        jump = ("-J", self.gateway) if self.gateway else ()
        # BatchMode makes ssh fail instead of asking for a password that no one can enter.
        settings = ("BatchMode=yes", "ConnectTimeout=10", *self.options)
        return (
            "-p",
            str(self.port),
            *key,
            *jump,
            *(word for setting in settings for word in ("-o", setting)),
        )


@dataclass(frozen=True)
class Machine:
    """Reserved machine.

    Attributes:
        host: host of the continuum that this machine takes the place of; `host.address` is the
            machine's address on the experiment network, `host.ipv6` holds the addresses that the
            machine reported (`node_facts.with_ipv6`)
        access: SSH access to the machine
        site: site of the machine; machines of one site share a home folder (Grid'5000's NFS);
            empty if the machine shares its home folder with no other
        cluster: cluster of the machine; empty if the testbed has no clusters
    """

    host: Host
    access: Access
    site: str = ""
    cluster: str = ""

    @property
    def alias(self) -> str:
        """Return the machine's name in Ansible's inventory, which is the host's name."""
        return self.host.name
