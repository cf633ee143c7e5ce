"""Nodes of Chameleon Cloud for the hosts of a scenario; nothing is reserved.

`cluster` is a type of node, such as compute_skylake, as in E2Clab.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import YamlSource
from laggard.layers_services.g5k.request import Placed, placed_services, seconds_of
from laggard.layers_services.model import ChameleonCloud, LayersServices

DEFAULT_IMAGE = "CC-Ubuntu24.04"
DEFAULT_MINUTES = 120

_NODE_TYPE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}", re.ASCII)


@dataclass(frozen=True)
class NodeGroup:
    """Nodes of one type.

    Attributes:
        hosts: names of the hosts whose place the nodes take, in order.
        node_type: type of the nodes.
    """

    hosts: tuple[str, ...]
    node_type: str


@dataclass(frozen=True)
class ChameleonPlan:
    """Planned lease.

    Attributes:
        groups: nodes by type; a type occurs once.
        minutes: length of the lease.
        image: name of the image that is deployed.
        key_name: name of the SSH key on Chameleon.
        rc_file: file with the credentials; empty for those of the environment.
    """

    groups: tuple[NodeGroup, ...]
    minutes: int
    image: str
    key_name: str
    rc_file: str = ""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(len(group.hosts) for group in self.groups)


def plan_chameleon(layers: LayersServices, source: YamlSource) -> ChameleonPlan:
    """Plan the lease of one node per host.

    Args:
        layers: content of `layers_services.yaml`.
        source: the parsed file, to locate problems.

    Raises:
        ScenarioError: everything that cannot be leased, with its place.
    """
    settings = layers.environment.chameleoncloud
    if settings is None:
        rule = "this scenario names no nodes of Chameleon Cloud"
        fix = "add `chameleoncloud: {cluster: compute_skylake, key_name: my-key}`"
        raise ScenarioError((source.locate_problem(("environment",), rule, fix),))
    walltime = settings.walltime or layers.environment.walltime
    minutes = DEFAULT_MINUTES if walltime is None else seconds_of(walltime) // 60
    problems = list(_check_settings(settings, walltime, minutes, source))
    types = dict[str, list[str]]()
    for placed in placed_services(layers):
        cluster = placed.service.cluster or settings.cluster or layers.environment.cluster
        problems += _check_service(placed, cluster, source)
        types.setdefault(cluster or "", []).extend(host.name for host in placed.hosts)
    if problems:
        raise ScenarioError(tuple(dict.fromkeys(problems)))
    return ChameleonPlan(
        tuple(NodeGroup(tuple(hosts), node_type) for node_type, hosts in types.items()),
        minutes,
        settings.image or DEFAULT_IMAGE,
        settings.key_name or "",
        settings.rc_file or "",
    )


def _check_settings(
    settings: ChameleonCloud, walltime: str | None, minutes: int, source: YamlSource
) -> Iterator[Problem]:
    at = ("environment", "chameleoncloud")
    if not settings.key_name:
        rule = "nodes are reached with an SSH key that Chameleon knows, and none is named"
        yield source.locate_problem(at, rule, "add `key_name: my-key`")
    if minutes == 0:
        rule = "Chameleon leases for whole minutes"
        key = (*(at if settings.walltime else at[:1]), "walltime")
        yield source.locate_problem(key, rule, 'write "02:00:00"', value=str(walltime))


def _check_service(placed: Placed, cluster: str | None, source: YamlSource) -> Iterator[Problem]:
    service, at = placed.service, placed.at
    name = f"service {service.name}"
    if service.environment == "chameleonedge":
        rule = "containers of Chameleon Edge have no SSH server and no netem, which workers need"
        fix = "write `environment: chameleoncloud`, or run it with --on local"
        yield source.locate_problem((*at, "environment"), rule, fix, value=name)
    elif service.environment not in (None, "chameleoncloud"):
        rule = f"it is for {service.environment}, and one run reserves on one testbed"
        fix = "write `environment: chameleoncloud`"
        yield source.locate_problem((*at, "environment"), rule, fix, value=name)
    elif service.servers is not None and service.cluster is None:
        rule = "nodes of Chameleon are leased by their type, and not by name"
        fix = "write `cluster: compute_skylake` and `quantity` instead of `servers`"
        yield source.locate_problem((*at, "servers"), rule, fix, value=name)
    elif cluster is None or not _NODE_TYPE.fullmatch(cluster):
        rule = "no type of node is given" if cluster is None else "no type of node"
        fix = "write `cluster: compute_skylake`, for example"
        yield source.locate_problem((*at, "cluster"), rule, fix, value=cluster or name)
