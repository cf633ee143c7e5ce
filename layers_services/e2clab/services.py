"""Deployment of a scenario's services as E2Clab does it, with users' own `Service` classes.

`e2clab services add NAME.py` copies a class into E2Clab's package
(`e2clab/services/plugins/NAME.py`). It deploys the service of exactly that name in
`layers_services.yaml`. All other services are deployed by E2Clab's `Default`, which only registers
the hosts. Plays of `workflow.yaml` see what a class registers: service keys, sub-services, ports
and extra information.

The local testbed does not run these classes. Its hosts share this machine's file system, so
`deploy()` would install its software on the machine once per host.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from laggard.core.errors import DeploymentError, Problem
from laggard.core.hosts import Host
from laggard.core.yaml_source import YamlSource
from laggard.layers_services.compile import expand_repeated_services
from laggard.layers_services.e2clab.ansible_runs import failure_reason, working_in
from laggard.layers_services.model import LayersServices, Service

if TYPE_CHECKING:
    from enoslib import Roles
    from enoslib.objects import Host as EnosHost

DEFAULT = "Default"
"""E2Clab's class for services without a class of their own."""

UNPLACED = YamlSource("layers_services.yaml", None, {})

Information = Mapping[str, Mapping[str, object]]
_Metadata = dict[str, object]


@dataclass(frozen=True)
class DeployedServices:
    """Deployed services, as plays see them.

    Attributes:
        roles: EnOSlib roles; the host of every registered service key carries the information that
            E2Clab passes to plays
        information: the same information by service key
    """

    roles: Roles
    information: Information


class _E2clabService(Protocol):
    service_extra_info: Mapping[str, Mapping[str, object]]
    service_roles: Mapping[str, Sequence[EnosHost]]

    def deploy(self) -> object: ...


class _ServiceClass(Protocol):
    def __call__(
        self, hosts: Sequence[EnosHost], service_metadata: _Metadata
    ) -> _E2clabService: ...


def registered_classes() -> frozenset[str]:
    """Return the names of users' service classes in the installed E2Clab, without importing it."""
    package = importlib.util.find_spec("e2clab")
    folders = package.submodule_search_locations if package is not None else None
    names = {
        path.stem
        for folder in folders or ()
        for path in Path(folder, "services", "plugins").glob("*.py")
    }
    return frozenset(names - {"__init__", DEFAULT})


def own_classes(layers: LayersServices) -> frozenset[str]:
    """Return the services of a scenario that have a registered class of their own."""
    names = {service.name for layer in layers.layers for service in layer.services}
    return registered_classes() & names if names - {DEFAULT} else frozenset()


def service_warnings(
    layers: LayersServices,
    *,
    run_plugins: bool,
    source: YamlSource = UNPLACED,
    registered: frozenset[str] | None = None,
) -> tuple[Problem, ...]:
    """Return warnings about services whose own class will not run.

    Args:
        layers: the validated file
        run_plugins: True if the testbed runs users' classes (see `deploy_services`)
        source: location of `layers` in its file
        registered: names of the registered classes; by default those of the installed E2Clab

    Returns:
        Services whose registered class this testbed does not run, and services with an `env` but
        no registered class. Only a class of its own reads `env`; E2Clab silently deploys `Default`
        for such a service.
    """
    known = registered_classes() if registered is None else registered
    found = []
    for i, layer in enumerate(layers.layers):
        for j, service in enumerate(layer.services):
            key = ("layers", i, "services", j)
            if service.name in known and not run_plugins:
                rule = (
                    "E2Clab's class of this name does not run on `local`, because its hosts share"
                    " this machine's file system"
                )
                fix = "its hosts are registered as `Default` does; use g5k or ssh to run the class"
                found.append(source.locate_problem((*key, "name"), rule, fix, value=service.name))
            elif service.env and service.name not in known:
                rule = (
                    f"`env` is read only by a service class `{service.name}`, which is not"
                    f" registered: E2Clab deploys `{DEFAULT}`"
                )
                fix = (
                    f"run `e2clab services add {service.name}.py` with the e2clab in this"
                    " environment"
                )
                found.append(source.locate_problem((*key, "env"), rule, fix, value=service.name))
    return tuple(found)


def deploy_services(
    layers: LayersServices,
    roles: Roles,
    hosts: Sequence[Host],
    *,
    run_plugins: bool,
    workspace: Path | None = None,
    log: Path | None = None,
) -> DeployedServices:
    """Deploy every service of a scenario as E2Clab does, in the order of the file; once per run.

    Args:
        layers: the validated file that `hosts` were compiled from
        roles: EnOSlib roles of the hosts, in which every host has its service key
        hosts: all hosts in compiled order
        run_plugins: True runs users' own classes; False deploys every service as E2Clab's
            `Default`
        workspace: folder that EnOSlib writes its playbooks to; None selects the sandbox's own
        log: file to which the full records of failed tasks are appended; None keeps none

    Raises:
        DeploymentError: a class cannot be loaded, or its `deploy()` failed
    """
    # `groupby` is enough: compiled order keeps the hosts of one service next to each other.
    members = {key: list(group) for key, group in itertools.groupby(hosts, _service_of)}
    deployed = _without_keys(roles, hosts)
    information: dict[str, Mapping[str, object]] = {}
    with working_in(workspace):
        for key, layer, service in _number_services(layers):
            metadata = _build_metadata(service, layer, *key)
            name = service.name if run_plugins and service.name in registered_classes() else DEFAULT
            metadata["service_plugin_name"] = name
            instance = _deploy_service(
                name, [roles[host.name][0] for host in members[key]], metadata, log
            )
            information.update(instance.service_extra_info)
            deployed.update(instance.service_roles)
    return DeployedServices(deployed, information)


def register_hosts(roles: Roles, hosts: Sequence[Host]) -> DeployedServices:
    """Register every host as E2Clab's `Default` does, without the services' own descriptions.

    Args:
        roles: EnOSlib roles of the hosts, in which every host has its service key
        hosts: the same hosts in compiled order
    """
    registered = _without_keys(roles, hosts)
    information: dict[str, Mapping[str, object]] = {}
    for (layer_id, service_id), group in itertools.groupby(hosts, _service_of):
        members = list(group)
        metadata = _build_numbering(members[0].layer, layer_id, service_id) | {
            "name": members[0].service
        }
        instance = _deploy_service(DEFAULT, [roles[member.name][0] for member in members], metadata)
        information.update(instance.service_extra_info)
        registered.update(instance.service_roles)
    return DeployedServices(registered, information)


def _service_of(host: Host) -> tuple[int, int]:
    return host.layer_id, host.service_id


def _number_services(layers: LayersServices) -> Iterator[tuple[tuple[int, int], str, Service]]:
    for layer_id, layer in enumerate(layers.layers, 1):
        for service_id, service in enumerate(expand_repeated_services(layer), 1):
            yield (layer_id, service_id), layer.name, service


def _build_metadata(service: Service, layer: str, layer_id: int, service_id: int) -> _Metadata:
    """Return the metadata that E2Clab's `InfrastructureConfig` builds from a service.

    It has all keys of the file and the numbers of the service.
    """
    written = service.model_dump(exclude_unset=True, exclude={"repeat"})
    # YAML has lists only; tuples are the model's.
    keys = {
        key: list(value) if isinstance(value, tuple) else value for key, value in written.items()
    }
    return keys | _build_numbering(layer, layer_id, service_id)


def _build_numbering(layer: str, layer_id: int, service_id: int) -> _Metadata:
    return {
        "_id": f"{layer_id}_{service_id}",
        "layer_name": layer,
        "layer_id": layer_id,
        "service_id": service_id,
    }


def _without_keys(roles: Roles, hosts: Sequence[Host]) -> Roles:
    """Return the roles without service keys, as E2Clab has them before it deploys services.

    E2Clab adds a service key to a host only when it registers the host under that key.
    """
    from enoslib import Roles

    keys = {host.name for host in hosts}
    return Roles({name: members for name, members in roles.items() if name not in keys})


def _deploy_service(
    name: str, hosts: Sequence[EnosHost], metadata: _Metadata, log: Path | None = None
) -> _E2clabService:
    service = _load_service_class(name)(hosts, metadata)
    try:
        service.deploy()
    except Exception as error:  # users' code raises arbitrary exceptions
        where = f"service {metadata['layer_name']}.{metadata['name']}.{metadata['service_id']}"
        raise DeploymentError(
            f"{where}: deploy() of its class `{name}` failed: {failure_reason(error, log)} —"
            " correct the class"
        ) from error
    return service


def _load_service_class(name: str) -> _ServiceClass:
    from e2clab.services import load_services

    try:
        loaded: Mapping[str, _ServiceClass] = load_services([name])
        return loaded[name]
    except Exception as error:  # importing runs users' code
        reason = (
            "its file does not define this class"
            if isinstance(error, KeyError)
            else failure_reason(error)
        )
        raise DeploymentError(
            f"service class `{name}` cannot be loaded: {reason}. Correct the file, then run: "
            f"e2clab services remove {name}; e2clab services add {name}.py"
        ) from error
