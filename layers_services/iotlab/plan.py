"""Boards of FIT IoT-LAB for the hosts of a scenario; nothing is reserved.

`cluster` is a site and `archi` a kind of board, as in E2Clab. Workers need Linux of 64 bits and an
SSH server, which only the Raspberry Pi boards have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from laggard.core.corrections.names import find_near_name
from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import YamlSource
from laggard.layers_services.g5k.request import Placed, placed_services, seconds_of
from laggard.layers_services.model import Iotlab, LayersServices

SITES = ("grenoble", "lille", "lyon", "paris", "saclay", "strasbourg", "toulouse")
DEFAULT_MINUTES = 60

_TRAINS = ("rpi3", "rpi4")
_BOARD = re.compile(r"([a-z0-9]+)-\d+\.([a-z]+)\.iot-lab\.info", re.ASCII)


@dataclass(frozen=True)
class BoardGroup:
    """Boards of one service at one site.

    Attributes:
        hosts: names of the hosts whose place the boards take, in order.
        site: site of the boards.
        archi: kind of the boards; empty if they are named.
        boards: full names, in the order of `hosts`; empty for any boards of the kind.
    """

    hosts: tuple[str, ...]
    site: str
    archi: str = ""
    boards: tuple[str, ...] = ()


@dataclass(frozen=True)
class IotlabPlan:
    """Planned reservation.

    Attributes:
        groups: boards of all services.
        minutes: length of the reservation.
    """

    groups: tuple[BoardGroup, ...]
    minutes: int

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites of the boards."""
        return tuple(dict.fromkeys(group.site for group in self.groups))

    @property
    def boards(self) -> int:
        """Number of boards."""
        return sum(len(group.hosts) for group in self.groups)


def plan_iotlab(layers: LayersServices, source: YamlSource) -> IotlabPlan:
    """Plan the reservation of one board per host.

    Args:
        layers: content of `layers_services.yaml`.
        source: the parsed file, to locate problems.

    Raises:
        ScenarioError: everything that IoT-LAB would refuse, or that cannot train, with its place.
    """
    settings = layers.environment.iotlab
    if settings is None:
        rule = "this scenario names no boards of FIT IoT-LAB"
        fix = "add `iotlab: {cluster: grenoble}`, and `archi: rpi3:at86rf233` to each service"
        raise ScenarioError((source.locate_problem(("environment",), rule, fix),))
    walltime = settings.walltime or layers.environment.walltime
    minutes = DEFAULT_MINUTES if walltime is None else seconds_of(walltime) // 60
    problems, groups = [], []
    if minutes == 0:
        rule = "IoT-LAB reserves for whole minutes"
        key = ("environment", *(("iotlab",) if settings.walltime else ()), "walltime")
        problems.append(source.locate_problem(key, rule, 'write "01:00:00"', value=str(walltime)))
    by_name = list[Placed]()
    for placed in placed_services(layers):
        found = list(_plan_service(placed, settings, layers, source))
        problems += [each for each in found if isinstance(each, Problem)]
        groups += (own := [each for each in found if isinstance(each, BoardGroup)])
        by_name += [placed] if any(group.boards for group in own) else []
    if not all(group.boards for group in groups):
        problems += [_refuse_mixture(placed, source) for placed in by_name]
    if problems:
        raise ScenarioError(tuple(dict.fromkeys(problems)))
    return IotlabPlan(tuple(groups), minutes)


def _plan_service(
    placed: Placed, settings: Iotlab, layers: LayersServices, source: YamlSource
) -> Iterator[BoardGroup | Problem]:
    """Yield the boards of a service, or the problems that it has."""
    service, at = placed.service, placed.at
    name = f"service {service.name}"
    if service.environment not in (None, "iotlab"):
        rule = f"it is for {service.environment}, and one run reserves on one testbed"
        fix = "write `environment: iotlab`"
        yield source.locate_problem((*at, "environment"), rule, fix, value=name)
        return
    hosts = tuple(host.name for host in placed.hosts)
    # A cluster takes precedence over named machines, as in E2Clab.
    if service.servers is not None and service.cluster is None:
        yield from _plan_named(placed, hosts, source)
        return
    site = service.cluster or settings.cluster or layers.environment.cluster
    if site not in SITES:
        near = None if site is None else find_near_name(site, SITES)
        rule = "no site of FIT IoT-LAB is given" if site is None else "no site of FIT IoT-LAB"
        fix = f"write `cluster: {near or SITES[0]}`; the sites are {', '.join(SITES)}"
        yield source.locate_problem((*at, "cluster"), rule, fix, value=site or name)
    elif service.archi is None or not service.archi.startswith(_TRAINS):
        yield source.locate_problem(
            (*at, "archi"), _describe_board(service.archi or ""), _FIX, value=service.archi or name
        )
    else:
        yield BoardGroup(hosts, site, service.archi)


def _refuse_mixture(placed: Placed, source: YamlSource) -> Problem:
    rule = "IoT-LAB reserves boards by name or by kind, and not both in one experiment"
    fix = "name the boards of all services, or write `archi: rpi3:at86rf233` and `quantity` instead"
    return source.locate_problem(
        (*placed.at, "servers"), rule, fix, value=f"service {placed.service.name}"
    )


_FIX = "write `archi: rpi3:at86rf233`, or run it with --on local"


def _describe_board(archi: str) -> str:
    """Return why a kind of board cannot run workers."""
    if not archi:
        return "no kind of board is given"
    if archi.startswith("a8"):
        return "A8 boards have Linux of 32 bits, for which there is no PyTorch"
    return "boards of this kind have no Linux, so no worker can run there"


def _plan_named(
    placed: Placed, hosts: tuple[str, ...], source: YamlSource
) -> Iterator[BoardGroup | Problem]:
    """Yield the named boards of a service, by site."""
    servers = placed.service.servers
    named = (servers,) if isinstance(servers, str) else servers or ()
    by_site: dict[str, list[tuple[str, str]]] = {}
    for position, (board, host) in enumerate(zip(named, hosts, strict=True)):
        found = _BOARD.fullmatch(board)
        if found is None or found[2] not in SITES:
            rule = "no name of a board"
            fix = "write rpi3-1.grenoble.iot-lab.info, for example"
        elif not found[1].startswith(_TRAINS):
            rule, fix = _describe_board(found[1]), "name boards such as rpi3-1"
        else:
            by_site.setdefault(found[2], []).append((host, board))
            continue
        yield source.locate_problem((*placed.at, "servers", position), rule, fix, value=board)
    for site, pairs in by_site.items():
        yield BoardGroup(
            tuple(host for host, _ in pairs), site, boards=tuple(board for _, board in pairs)
        )
