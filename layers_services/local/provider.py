"""EnOSlib's roles and networks of the local hosts, which Ansible reaches in their namespaces.

EnOSlib's own `sync_info` queries the network devices of every host, which takes a second or more
per host. Here they are already known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import DeploymentError
from laggard.core.hosts import Host
from laggard.layers_services.compile import DEVICE, PREFIX_LENGTH, static_description

if TYPE_CHECKING:
    from enoslib import Networks, Roles

_FOLDER = Path("/run/ansible")
_PLUGINS = Path(__file__).with_name("connection_plugins")
_FORKS = 16
CONTROL_FOLDER_VARIABLE = "LAGGARD_CONTROL_FOLDER"
"""Variable with the run folder of an emulation, which then holds Ansible's tasks to shares."""


def use_namespace_connection() -> None:
    """Configure Ansible to enter the hosts' namespaces.

    Call it before any import of Ansible or EnOSlib, since Ansible reads its settings at import.

    Raises:
        DeploymentError: Ansible has already read its settings
    """
    settings = {
        "ANSIBLE_CONNECTION_PLUGINS": str(_PLUGINS),
        "ANSIBLE_HOME": str(_FOLDER),
        "ANSIBLE_LOCAL_TEMP": str(_FOLDER / "local"),
        "ANSIBLE_REMOTE_TEMP": str(_FOLDER / "remote"),
        "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
        "ANSIBLE_DEPRECATION_WARNINGS": "False",
        "ANSIBLE_TRANSFORM_INVALID_GROUP_CHARS": "ignore",
    }
    if all(os.environ.get(key) == value for key, value in settings.items()):
        return
    if "ansible.constants" in sys.modules:
        raise DeploymentError(
            "Ansible was imported before `use_namespace_connection()`, so it cannot connect to the"
            " hosts"
        )
    os.environ.update(settings)


def enoslib_roles(hosts: Sequence[Host]) -> tuple[Roles, Networks]:
    """Return EnOSlib's roles and networks for these hosts, with E2Clab's names.

    Roles have E2Clab's order: first layers, services, `layer_id_service_id` and extra roles, then
    every host's service key. All roles of a host share one `enoslib.Host`. Its alias is the host's
    name, and its network devices are filled in.

    Args:
        hosts: hosts with addresses

    Raises:
        DeploymentError: Ansible was imported before `use_namespace_connection`
    """
    use_namespace_connection()
    import enoslib

    enoslib.set_config(ansible_stdout="noop", ansible_forks=_FORKS)
    static = enoslib.Static(enoslib.StaticConf.from_dictionary(static_description(hosts)))
    described, networks = static.init()
    network = next(iter(networks.all()))
    machines = {}
    for host in hosts:
        machine = described[host.name][0]
        address = enoslib.objects.IPAddress(f"{host.address}/{PREFIX_LENGTH}", network)
        machine.net_devices = {enoslib.objects.NetDevice(DEVICE, {address})}
        machines[host.name] = machine
    roles = enoslib.Roles()
    for host in hosts:
        for group in host.groups:
            roles[group] += [machines[host.name]]
    for host in hosts:
        roles[host.name] += [machines[host.name]]
    return roles, networks


@contextmanager
def ansible_workspace() -> Iterator[Path]:
    """Change to a writable folder while EnOSlib runs, because it writes its playbooks there."""
    workspace = _FOLDER / "work"
    workspace.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(workspace)
    try:
        yield workspace
    finally:
        os.chdir(before)
