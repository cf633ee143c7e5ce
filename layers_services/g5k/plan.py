"""Conversion of `layers_services.yaml` into a reservation plan; the testbed is not queried.

Names, roles and defaults are those of E2Clab 3.7 (`e2clab/providers/plugins/G5k.py`). A service's
`cluster` takes precedence over its `servers`, and these over the environment's cluster. Settings
in `g5k:` take precedence over those in `environment:`. The default walltime is one hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import get_args

from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.layers_services.compile import NETWORK_ROLE
from laggard.layers_services.g5k.checks import (
    cluster_problem,
    group_problems,
    provider_problems,
    server_problem,
    setting_problems,
)
from laggard.layers_services.g5k.environments import environment_warnings
from laggard.layers_services.g5k.reference import Reference, parse_server
from laggard.layers_services.g5k.reference import load_reference as shipped
from laggard.layers_services.g5k.request import (
    DEPLOY,
    G5kOptions,
    G5kPlan,
    JobReference,
    MachineGroup,
    NetworkKind,
    Placed,
    PlannedNetwork,
    Settings,
    parse_job,
    placed_services,
)
from laggard.layers_services.g5k.usage_rules import Queue
from laggard.layers_services.model import G5k, LayersServices

__all__ = ["G5kOptions", "G5kPlan", "MachineGroup", "plan_g5k"]

DEFAULT_WALLTIME = "01:00:00"
UNPLACED = YamlSource("layers_services.yaml", None, {})


def plan_g5k(
    layers: LayersServices,
    options: G5kOptions | None = None,
    source: YamlSource = UNPLACED,
    reference: Reference | None = None,
) -> G5kPlan:
    """Plan a reservation.

    Args:
        layers: a validated `layers_services.yaml`
        options: options of the command line
        source: location of `layers` in its file, for problems
        reference: clusters of the testbed; by default the data that this version ships

    Raises:
        ScenarioError: everything that Grid'5000 would reject, with its location and the nearest
            valid choice
    """
    options, known = options or G5kOptions(), reference or shipped()
    # Without a supported provider, every further check would only report consequences.
    problems = list(provider_problems(layers, source))
    if problems:
        raise ScenarioError(tuple(problems))
    settings = _merge_settings(layers, options)
    groups, unplaced = _plan_groups(layers, settings, source, known)
    sites = tuple(dict.fromkeys(group.site for group in groups))
    problems += [*setting_problems(settings, options, source), *unplaced]
    problems += group_problems(groups, settings, source, known)
    reused, unusable = _parse_reused_jobs(options.jobs, sites)
    problems += unusable
    if problems:
        # Several services can report the same problem of a shared setting.
        known_once = dict.fromkeys(problems)
        raise ScenarioError(tuple(sorted(known_once, key=lambda p: (p.path, p.line, p.column))))
    networks = _plan_networks(sites, settings.kavlan)
    return G5kPlan(
        groups=tuple(_on_network(group, networks) for group in groups),
        networks=networks,
        job_types=settings.job_types,
        queue=next(queue for queue in get_args(Queue) if queue == settings.queue),
        walltime=settings.walltime,
        reservation=settings.reservation,
        env_name=settings.env_name,
        project=options.project,
        key=settings.g5k.key_name,
        monitor=settings.g5k.monitor,
        reused=reused,
        warnings=(
            *environment_warnings(settings.env_name, options, source),
            *_list_warnings(settings, source),
        ),
    )


def _merge_settings(layers: LayersServices, options: G5kOptions) -> Settings:
    environment = layers.environment
    g5k = environment.g5k or G5k()
    own = g5k.cluster is not None
    types = dict.fromkeys((*(g5k.job_type or ()), *options.job_types))
    env_name = options.env_name or g5k.env_name
    if env_name is not None:
        types[DEPLOY] = None
    return Settings(
        g5k=g5k,
        cluster=g5k.cluster if own else environment.cluster,
        cluster_at=("environment", "g5k", "cluster") if own else ("environment", "cluster"),
        walltime=options.walltime or g5k.walltime or environment.walltime or DEFAULT_WALLTIME,
        reservation=options.reservation or g5k.reservation,
        queue=options.queue or g5k.queue or "default",
        job_types=tuple(types),
        env_name=env_name,
        kavlan=options.kavlan,
    )


def _plan_groups(
    layers: LayersServices, settings: Settings, source: YamlSource, known: Reference
) -> tuple[list[MachineGroup], list[Problem]]:
    groups: list[MachineGroup] = []
    problems: list[Problem] = []
    for placed in placed_services(layers):
        service = placed.service
        if service.cluster is None and service.servers is not None:
            found = [server_problem(name, at, source, known) for name, at in _list_servers(placed)]
            problems += [problem for problem in found if problem is not None]
            groups += _server_groups(placed) if not any(found) else ()
            continue
        name = service.cluster if service.cluster is not None else settings.cluster
        at = (*placed.at, "cluster") if service.cluster is not None else settings.cluster_at
        if name is None:
            rule = "no cluster or servers are given for this service"
            fix = "add `cluster:` here, or to `g5k:` for all services"
            problems.append(
                source.locate_problem(placed.at, rule, fix, value=f"service {service.name}")
            )
        elif name not in known.by_name:
            problems.append(cluster_problem(name, at, source, known, settings.queue))
        else:
            hosts = tuple(host.name for host in placed.hosts)
            groups.append(
                MachineGroup(
                    hosts, _list_roles(placed), known.by_name[name].site, name, at=placed.at
                )
            )
    return groups, problems


def _list_servers(placed: Placed) -> list[tuple[str, KeyPath]]:
    servers, at = placed.service.servers, (*placed.at, "servers")
    if servers is None or isinstance(servers, str):
        return [] if servers is None else [(servers, at)]
    return [(name, (*at, position)) for position, name in enumerate(servers)]


def _server_groups(placed: Placed) -> Iterator[MachineGroup]:
    """Yield one group per cluster, since EnOSlib requires the servers of a group to be alike."""
    by_cluster: dict[tuple[str, str], list[tuple[str, str]]] = {}
    for (name, _), host in zip(_list_servers(placed), placed.hosts, strict=True):
        parsed = parse_server(name)
        assert parsed is not None
        by_cluster.setdefault((parsed[2], parsed[0]), []).append((host.name, name))
    for (site, cluster), pairs in by_cluster.items():
        hosts, servers = zip(*pairs, strict=True)
        yield MachineGroup(hosts, _list_roles(placed), site, cluster, servers, at=placed.at)


def _list_roles(placed: Placed) -> tuple[str, ...]:
    return tuple(dict.fromkeys(placed.hosts[0].groups))


def _plan_networks(sites: Sequence[str], kavlan: bool) -> tuple[PlannedNetwork, ...]:
    if not kavlan:
        return tuple(
            PlannedNetwork(f"network_{s}", "prod", s, (NETWORK_ROLE, f"my_{s}_network"))
            for s in sites
        )
    kind: NetworkKind = "kavlan" if len(sites) == 1 else "kavlan-global"
    return (
        PlannedNetwork(
            "network_kavlan",
            kind,
            sites[0],
            (NETWORK_ROLE, *(f"my_{site}_network" for site in sites)),
        ),
    )


def _on_network(group: MachineGroup, networks: Sequence[PlannedNetwork]) -> MachineGroup:
    own = [network for network in networks if network.kind != "prod" or network.site == group.site]
    return replace(group, network=own[0].id)


def _parse_reused_jobs(
    jobs: Sequence[str], sites: Sequence[str]
) -> tuple[tuple[JobReference, ...], list[Problem]]:
    found: list[JobReference] = []
    problems: list[Problem] = []
    wanted = " ".join(f"--job {site}:ID" for site in sites)
    for text in jobs:
        parsed = parse_job(text)
        if parsed is None:
            problems.append(
                Problem(
                    "--job",
                    0,
                    0,
                    text,
                    "a job has the form number or site:number",
                    "write nancy:1234567, for example",
                )
            )
        elif not parsed[0] and len(sites) > 1:
            rule = f"the scenario uses {len(sites)} sites and needs the site of each job"
            problems.append(Problem("--job", 0, 0, text, rule, wanted))
        elif parsed[0] and parsed[0] not in sites:
            rule = f"the scenario has no machines at {parsed[0]}"
            problems.append(Problem("--job", 0, 0, text, rule, wanted))
        else:
            found.append(JobReference(parsed[0] or sites[0] if sites else parsed[0], parsed[1]))
    missing = [site for site in sites if site not in {job.site for job in found}]
    if found and missing and not problems:
        rule = f"no job is given for {', '.join(missing)}"
        problems.append(
            Problem("--job", 0, 0, " ".join(jobs), rule, f"give one job per site: {wanted}")
        )
    twice = [site for site, count in Counter(job.site for job in found).items() if count > 1]
    if twice:
        problems.append(
            Problem(
                "--job", 0, 0, " ".join(jobs), f"two jobs at {twice[0]}", "give one job per site"
            )
        )
    return tuple(found), problems


def _list_warnings(settings: Settings, source: YamlSource) -> Iterator[Problem]:
    unused = (
        ("firewall_rules", "Laggard does not open ports to the outside"),
        ("ipv6", "Laggard's experiments use IPv4"),
    )
    for key, rule in unused:
        if getattr(settings.g5k, key):
            yield source.locate_problem(
                ("environment", "g5k", key),
                rule,
                "ignore this warning unless your services need it",
            )
