"""The local testbed as EnOSlib sees it: roles and networks of hosts that are namespaces, reached by
Ansible.

EnOSlib's own `sync_info` asks every host for its network devices, at a second or more per host;
here they are known.
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


def use_namespace_connection() -> None:
    """Let Ansible find the way into the hosts' namespaces; call it before anything imports Ansible
    or EnOSlib.

    Raises:
        DeploymentError: Ansible has read its settings already.
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
            "Ansible was imported before `use_namespace_connection()`, so it would not find the"
            " hosts"
        )
    os.environ.update(settings)


def enoslib_roles(hosts: Sequence[Host]) -> tuple[Roles, Networks]:
    """EnOSlib's roles and networks for these hosts, keyed as E2Clab keys them.

    Roles come in E2Clab's order: layers, services, `layer_id_service_id` and extra roles first,
    then every host's service key. All roles of a host share one `enoslib.Host`, whose alias is the
    host's name and whose network devices are filled in.

    Args:
        hosts: with addresses.

    Raises:
        DeploymentError: Ansible was imported before `use_namespace_connection`.
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
    """A writable current folder for the time that EnOSlib runs, which writes its playbooks
    there.
    """
    workspace = _FOLDER / "work"
    workspace.mkdir(parents=True, exist_ok=True)
    before = Path.cwd()
    os.chdir(workspace)
    try:
        yield workspace
    finally:
        os.chdir(before)
