"""The services of a scenario as E2Clab deploys them: through the user's own `Service` subclasses
where there are any.

`e2clab services add NAME.py` puts a class into E2Clab's package
(`e2clab/services/plugins/NAME.py`); a service of exactly that name in `layers_services.yaml` is
deployed by it, every other by E2Clab's `Default`, which only registers the hosts. What a class
registers (service keys, sub-services, ports, extra information) is what plays of `workflow.yaml`
see.

On the local testbed the classes are not run: its hosts share this machine's file system, on which
`deploy()` would install its software, once per host.
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
"""E2Clab's class for services that have none of their own."""

UNPLACED = YamlSource("layers_services.yaml", None, {})

Information = Mapping[str, Mapping[str, object]]
_Metadata = dict[str, object]


@dataclass(frozen=True)
class DeployedServices:
    """What plays run on.

    Attributes:
        roles: EnOSlib roles in which the host of every registered service key carries what E2Clab
            tells plays about it.
        information: all of that by service key.
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
    """Names of the users' own service classes in E2Clab's package here, found without importing
    it.
    """
    package = importlib.util.find_spec("e2clab")
    folders = package.submodule_search_locations if package is not None else None
    names = {
        path.stem
        for folder in folders or ()
        for path in Path(folder, "services", "plugins").glob("*.py")
    }
    return frozenset(names - {"__init__", DEFAULT})


def own_classes(layers: LayersServices) -> frozenset[str]:
    """Services of a scenario that have a class of their own here."""
    names = {service.name for layer in layers.layers for service in layer.services}
    return registered_classes() & names if names - {DEFAULT} else frozenset()


def service_warnings(
    layers: LayersServices,
    *,
    run_plugins: bool,
    source: YamlSource = UNPLACED,
    registered: frozenset[str] | None = None,
) -> tuple[Problem, ...]:
    """Services whose own class will not be run, by name.

    Args:
        layers: the validated file.
        run_plugins: whether the testbed runs users' classes (see `deploy_services`).
        source: where `layers` was read.
        registered: the classes there are; by default those of E2Clab's package here.

    Returns:
        Services whose registered class this testbed does not run, and services with an `env`, which
        only a class of their own reads, that have none registered: E2Clab deploys `Default` for
        them without saying so.
    """
    known = registered_classes() if registered is None else registered
    found = []
    for i, layer in enumerate(layers.layers):
        for j, service in enumerate(layer.services):
            key = ("layers", i, "services", j)
            if service.name in known and not run_plugins:
                rule = (
                    "E2Clab's class of this name is not deployed on `local`, whose hosts share this"
                    " machine's file system"
                )
                fix = "its hosts are registered as by `Default`; the class runs on g5k and ssh"
                found.append(source.locate_problem((*key, "name"), rule, fix, value=service.name))
            elif service.env and service.name not in known:
                rule = (
                    f"`env` is for a service class `{service.name}`, and E2Clab has none here: it"
                    f" deploys `{DEFAULT}`"
                )
                fix = f"e2clab services add {service.name}.py, with the e2clab beside this laggard"
                found.append(source.locate_problem((*key, "env"), rule, fix, value=service.name))
    return tuple(found)


def deploy_services(
    layers: LayersServices,
    roles: Roles,
    hosts: Sequence[Host],
    *,
    run_plugins: bool,
    workspace: Path | None = None,
) -> DeployedServices:
    """Deploy every service of a scenario as E2Clab does, one after the other in the file's order;
    once per run.

    Args:
        layers: the validated file, which `hosts` were compiled from.
        roles: EnOSlib roles of the hosts, in which every host has its service key.
        hosts: all of them, in compiled order.
        run_plugins: run users' own classes; without it every service is E2Clab's `Default`.
        workspace: folder that EnOSlib writes its playbooks to; None is the sandbox's own.

    Raises:
        DeploymentError: a class cannot be loaded, or its `deploy()` failed.
    """
    members = {key: list(group) for key, group in itertools.groupby(hosts, _service_of)}
    deployed = _without_keys(roles, hosts)
    information: dict[str, Mapping[str, object]] = {}
    with working_in(workspace):
        for key, layer, service in _number_services(layers):
            metadata = _build_metadata(service, layer, *key)
            name = service.name if run_plugins and service.name in registered_classes() else DEFAULT
            metadata["service_plugin_name"] = name
            instance = _deploy_service(
                name, [roles[host.name][0] for host in members[key]], metadata
            )
            information.update(instance.service_extra_info)
            deployed.update(instance.service_roles)
    return DeployedServices(deployed, information)


def register_hosts(roles: Roles, hosts: Sequence[Host]) -> DeployedServices:
    """Register every host as E2Clab's `Default` does, where the services' own descriptions do not
    matter.

    Args:
        roles: EnOSlib roles of the hosts, in which every host has its service key.
        hosts: the same hosts, in compiled order.
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
    """What E2Clab's `InfrastructureConfig` makes of a service: all that is written, and its
    numbers.
    """
    return service.model_dump(
        mode="json", exclude_unset=True, exclude={"repeat"}
    ) | _build_numbering(layer, layer_id, service_id)


def _build_numbering(layer: str, layer_id: int, service_id: int) -> _Metadata:
    return {
        "_id": f"{layer_id}_{service_id}",
        "layer_name": layer,
        "layer_id": layer_id,
        "service_id": service_id,
    }


def _without_keys(roles: Roles, hosts: Sequence[Host]) -> Roles:
    """The roles that E2Clab has before it deploys services: a key names a host only once it is
    registered under it.
    """
    from enoslib import Roles

    keys = {host.name for host in hosts}
    return Roles({name: members for name, members in roles.items() if name not in keys})


def _deploy_service(name: str, hosts: Sequence[EnosHost], metadata: _Metadata) -> _E2clabService:
    service = _load_service_class(name)(hosts, metadata)
    try:
        service.deploy()
    except Exception as error:  # whatever a user's own code raises
        where = f"service {metadata['layer_name']}.{metadata['name']}.{metadata['service_id']}"
        raise DeploymentError(
            f"{where}: deploy() of its class `{name}` failed: {failure_reason(error)}"
        ) from error
    return service


def _load_service_class(name: str) -> _ServiceClass:
    from e2clab.services import load_services

    try:
        loaded: Mapping[str, _ServiceClass] = load_services([name])
        return loaded[name]
    except Exception as error:  # importing runs a user's own code
        reason = (
            "its file defines no such class"
            if isinstance(error, KeyError)
            else failure_reason(error)
        )
        raise DeploymentError(
            f"service class `{name}` cannot be loaded: {reason}; mend the file, then: "
            f"e2clab services remove {name}; e2clab services add {name}.py"
        ) from error
