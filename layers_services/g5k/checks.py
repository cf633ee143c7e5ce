"""Checks for everything that Grid'5000 would reject in a scenario, with a valid alternative."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import get_args

from laggard.core.corrections.names import find_near_name
from laggard.core.edits import Correction, YamlValue, write_value
from laggard.core.errors import Problem
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.layers_services.g5k.environments import RECOMMENDED
from laggard.layers_services.g5k.reference import (
    EXOTIC,
    Cluster,
    Reference,
    parse_server,
    spelled_out,
)
from laggard.layers_services.g5k.request import (
    DEPLOY,
    G5kOptions,
    MachineGroup,
    Settings,
    placed_services,
    seconds_of,
)
from laggard.layers_services.g5k.usage_rules import DATE, Queue
from laggard.layers_services.model import LayersServices

_JOB_TYPE: KeyPath = ("environment", "g5k", "job_type")
_EXAMPLE_SERVER = "gros-1.nancy.grid5000.fr"
_TESTBEDS = {
    "iotlab": "FIT IoT-LAB",
    "chameleoncloud": "Chameleon Cloud",
    "chameleonedge": "Chameleon Edge",
    "scalewayinstances": "Scaleway",
}


def provider_problems(layers: LayersServices, source: YamlSource) -> Iterator[Problem]:
    """Yield a problem for services of testbeds on which Laggard cannot reserve."""
    environment = layers.environment
    there = [name for name in ("g5k", *_TESTBEDS) if getattr(environment, name) is not None]
    written = source.at(("environment",))
    order = [str(name) for name in written] if isinstance(written, dict) else there
    first = next((name for name in order if name in there), "g5k")
    if "g5k" not in there:
        rule = (
            f"this scenario is for {_TESTBEDS[first]}; among E2Clab's testbeds Laggard supports"
            " only Grid'5000"
        )
        fix = "add `g5k: {cluster: ...}`, or run it with --on ssh or --on local"
        yield source.locate_problem(("environment", first), rule, fix, value=first)
        return
    told: set[KeyPath] = set()
    for placed in placed_services(layers):
        provider = placed.service.environment or first
        if provider != "g5k" and placed.at not in told:
            told.add(placed.at)
            rule = f"it is for {_TESTBEDS[provider]}, which Laggard does not support"
            value = f"service {placed.service.name}"
            yield source.locate_problem(
                (*placed.at, "environment"), rule, "write `environment: g5k` and a cluster", value
            )


def setting_problems(
    settings: Settings, options: G5kOptions, source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each invalid setting of the whole reservation."""

    def problem(option: str, value: str, rule: str, example: str) -> Problem:
        fix = f"write {example}, for example"
        if getattr(options, option):
            return Problem(f"--{option.replace('_', '-')}", 0, 0, value, rule, fix)
        key = ("environment", "g5k", option)
        advice = write_value(key, example, fix)
        return source.locate_problem(key, rule, advice, value=f"{option}: {value}")

    if seconds_of(settings.walltime) == 0:
        rule = "a walltime is HH:MM:SS and greater than 0"
        yield problem("walltime", settings.walltime, rule, "02:00:00")
    if settings.reservation is not None and not _is_date(settings.reservation):
        rule = "a reservation date is YYYY-MM-DD HH:MM:SS in Paris time"
        yield problem("reservation", settings.reservation, rule, "2027-01-31 19:00:00")
    if settings.queue not in get_args(Queue):
        rule = f"the queues are {', '.join(get_args(Queue))}"
        near = find_near_name(settings.queue, get_args(Queue)) or "default"
        yield problem("queue", settings.queue, rule, near)
    if settings.kavlan and settings.env_name is None:
        rule = "nodes in a VLAN are unreachable until a system is deployed on them"
        yield Problem(
            "--kavlan", 0, 0, "", rule, f"set the system, such as --env-name {RECOMMENDED}"
        )
    elif DEPLOY in settings.job_types and settings.env_name is None:
        rule = f"a job of type `{DEPLOY}` needs a system to deploy"
        text = f"add `env_name: {RECOMMENDED}`, or remove `deploy`"
        fix = write_value(("environment", "g5k", "env_name"), RECOMMENDED, text)
        yield source.locate_problem(_JOB_TYPE, rule, fix)


def group_problems(
    groups: Sequence[MachineGroup], settings: Settings, source: YamlSource, known: Reference
) -> Iterator[Problem]:
    """Yield a problem for each request that the clusters cannot satisfy.

    Checked are the queues, the job types, the number of nodes, and servers that are named twice.
    """
    # Each cluster is checked once, at the first service that uses it.
    for group in {group.cluster: group for group in reversed(groups)}.values():
        yield from _cluster_problems(group, known.by_name[group.cluster], settings, source)
    yield from _count_problems(groups, settings, source, known)
    yield from _servers_twice(groups, source)


def cluster_problem(
    name: str, at: KeyPath, source: YamlSource, known: Reference, queue: str
) -> Problem:
    """Return the problem for a cluster that Grid'5000 does not have."""
    rule = f"Grid'5000 has no cluster `{name}` (reference data of {known.date})"
    near, text = _suggest_nearest_name(name, known, queue)
    return source.locate_problem(
        at, rule, write_value(at, near.name, text), value=f"cluster: {name}"
    )


def server_problem(name: str, at: KeyPath, source: YamlSource, known: Reference) -> Problem | None:
    """Return the problem for a server that does not exist or lacks its full name, else None."""
    parsed = parse_server(name)
    if parsed is None:
        short = re.fullmatch(r"([a-z]\w*)-([1-9]\d*)(?:\..*)?", name, re.ASCII)
        cluster = known.by_name.get(short[1]) if short else None
        rule = "a server name has the form cluster-number.site.grid5000.fr"
        if short and cluster:
            meant = cluster.server(_find_closest_number(int(short[2]), cluster))
            fix = write_value(at, meant, f"write {meant}")
        else:
            fix = write_value(at, _EXAMPLE_SERVER, f"write {_EXAMPLE_SERVER}, for example")
        return source.locate_problem(at, rule, fix, value=name)
    cluster = known.by_name.get(parsed[0])
    if cluster is None:
        rule = f"Grid'5000 has no cluster `{parsed[0]}` (reference data of {known.date})"
        near, text = _suggest_nearest_name(parsed[0], known, "default")
        meant = near.server(_find_closest_number(parsed[1], near))
        fix = write_value(at, meant, f"{text}; write {meant}, for example")
        return source.locate_problem(at, rule, fix, value=name)
    closest = cluster.server(_find_closest_number(parsed[1], cluster))
    if cluster.site != parsed[2]:
        rule = f"{cluster.name} is at {cluster.site}"
        fix = write_value(at, closest, f"write {closest}")
        return source.locate_problem(at, rule, fix, value=name)
    if not cluster.has(parsed[1]):
        rule = f"{cluster.name} has the nodes {cluster.numbers}"
        fix = write_value(at, closest, f"write {closest}, for example")
        return source.locate_problem(at, rule, fix, value=name)
    return None


def _cluster_problems(
    group: MachineGroup, cluster: Cluster, settings: Settings, source: YamlSource
) -> Iterator[Problem]:
    value, at = f"cluster {cluster.name}", (*group.at, "servers" if group.servers else "cluster")
    if source.at(at) is None:
        at = settings.cluster_at
    if cluster.exotic and EXOTIC not in settings.job_types:
        rule = f"{cluster.name} is exotic: only jobs of type `{EXOTIC}` get its nodes"
        types: list[YamlValue] = [*settings.job_types, EXOTIC]
        text = f"write `job_type: [{', '.join(map(str, types))}]` under `g5k:`"
        yield source.locate_problem(at, rule, write_value(_JOB_TYPE, types, text), value)
    if settings.queue in get_args(Queue) and settings.queue not in (*cluster.queues, "besteffort"):
        rule = (
            f"{cluster.name} is not in the {settings.queue} queue but in"
            f" {' and '.join(cluster.queues)}"
        )
        usable = [queue for queue in cluster.queues if queue in get_args(Queue)]
        text = f"write `queue: {', '.join(usable[:1])}` under `g5k:`, or choose another cluster"
        fix = (
            write_value(("environment", "g5k", "queue"), usable[0], text)
            if usable
            else Correction("choose another cluster")
        )
        yield source.locate_problem(at, rule, fix, value)
    if DEPLOY in settings.job_types and not cluster.deploy:
        yield source.locate_problem(
            at,
            f"{cluster.name} does not support deployment",
            "remove `env_name` and `deploy`",
            value,
        )
    if settings.kavlan and not cluster.kavlan:
        yield source.locate_problem(
            at, f"{cluster.name} does not support VLANs", "omit --kavlan", value
        )


def _count_problems(
    groups: Sequence[MachineGroup], settings: Settings, source: YamlSource, known: Reference
) -> Iterator[Problem]:
    wanted: Counter[str] = Counter()
    for group in groups:
        wanted[group.cluster] += group.nodes
    total: Counter[str] = Counter()
    for group in groups:
        cluster = known.by_name[group.cluster]
        # The problem is located at the service whose nodes exceed the cluster's size.
        before, total[group.cluster] = total[group.cluster], total[group.cluster] + group.nodes
        if before <= cluster.nodes < total[group.cluster]:
            needed = wanted[cluster.name]
            value = f"{needed} nodes of {cluster.name}"
            larger = _suggest_larger_cluster(cluster, needed, settings, known)
            fix = f"use at most {cluster.nodes}{larger}"
            rule = f"{cluster.name}, at {cluster.site}, has {_format_node_count(cluster.nodes)}"
            yield source.locate_problem((*group.at, "quantity"), rule, fix, value)


def _servers_twice(groups: Sequence[MachineGroup], source: YamlSource) -> Iterator[Problem]:
    seen: set[str] = set()
    for group in groups:
        for server in group.servers:
            if server in seen:
                rule = "a machine can be used for one host only"
                yield source.locate_problem(
                    (*group.at, "servers"),
                    rule,
                    "name each server once and do not use `repeat`",
                    server,
                )
            seen.add(server)


def _suggest_larger_cluster(
    cluster: Cluster, needed: int, settings: Settings, known: Reference
) -> str:
    """Return the most similar cluster that is large enough, as the end of a sentence."""
    enough = [
        other
        for other in known.clusters
        if other.nodes >= needed
        and settings.queue in other.queues
        and (not other.exotic or cluster.exotic)
    ]
    if not enough:
        return ", and place the rest on other clusters"

    def unlike(other: Cluster) -> tuple[bool, bool, bool, int]:
        gpus = other.has_gpus != cluster.has_gpus
        return (
            other.architecture != cluster.architecture,
            gpus,
            other.site != cluster.site,
            other.nodes,
        )

    best = min(enough, key=unlike)
    return f", or choose `{best.name}` at {best.site}, which has {best.nodes}"


def _suggest_nearest_name(name: str, known: Reference, queue: str) -> tuple[Cluster, str]:
    """Return the cluster with the most similar name, or else a large one, and words about it."""
    in_queue = [c.name for c in known.clusters if queue in c.queues] or list(known.by_name)
    for names in (in_queue, list(known.by_name)):
        near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
        if near:
            cluster = known.by_name[near[0]]
            nodes = _format_node_count(cluster.nodes)
            text = f"the most similar name is `{cluster.name}`, {nodes} at {cluster.site}"
            return cluster, text
    largest = sorted((c for c in known.clusters if c.name in in_queue), key=lambda c: -c.nodes)[:3]
    listed = ", ".join(f"`{c.name}` ({c.site}, {c.nodes})" for c in largest)
    return largest[0], f"for example {listed}"


def _find_closest_number(number: int, cluster: Cluster) -> int:
    return min(spelled_out(cluster.numbers), key=lambda other: (abs(other - number), other))


def _is_date(text: str) -> bool:
    try:
        datetime.strptime(text, DATE)  # noqa: DTZ007 - only the format is checked
    except ValueError:
        return False
    return True


def _format_node_count(count: int) -> str:
    return f"{count} node{'s' * (count != 1)}"
