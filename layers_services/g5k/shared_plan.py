"""One reservation for the runs of several scenarios: every run finds its nodes in it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from laggard.core.errors import InputError
from laggard.layers_services.g5k.request import G5kPlan, MachineGroup, PlannedNetwork

_ROLE = "shared"
_SAME_SETTINGS = ("queue", "job_types", "env_name", "project", "key", "monitor", "reservation")
"""Settings of a job that all its runs have in common."""


def join_plans(plans: Sequence[G5kPlan]) -> G5kPlan:
    """Return the smallest plan in which each of the plans fits, one at a time.

    Per cluster it has all servers that any plan names, and as many further nodes as the largest
    plan needs. The walltime is the longest one.

    Raises:
        InputError: the plans differ in a setting of the whole reservation.
    """
    first = plans[0]
    for plan in plans[1:]:
        _require_same_settings(first, plan)
    return replace(
        first,
        groups=tuple(_join_groups(plans)),
        networks=_join_networks(plans),
        walltime=max(plans, key=lambda plan: plan.walltime_s).walltime,
        reused=tuple(dict.fromkeys(job for plan in plans for job in plan.reused)),
        warnings=(),
    )


def count_nodes(plan: G5kPlan) -> Mapping[str, int]:
    """Return the number of nodes per cluster."""
    counts: Counter[str] = Counter()
    for group in plan.groups:
        counts[group.cluster] += group.nodes
    return counts


def _require_same_settings(first: G5kPlan, other: G5kPlan) -> None:
    differences = [
        f"{name}: {getattr(first, name)} and {getattr(other, name)}"
        for name in _SAME_SETTINGS
        if getattr(first, name) != getattr(other, name)
    ]
    has_vlan = any(network.kind != "prod" for network in (*first.networks, *other.networks))
    # A VLAN is at one site, or spans all sites of one reservation.
    if has_vlan and first.networks != other.networks:
        differences.append("VLANs of different sites")
    if differences:
        raise InputError(
            f"the scenarios need different reservations ({'; '.join(differences)}), and a campaign"
            " makes one for all its cells — give the same values to all scenarios under `g5k:`, or"
            " split the campaign into several files"
        )


def _join_networks(plans: Sequence[G5kPlan]) -> tuple[PlannedNetwork, ...]:
    return tuple({network.id: network for plan in plans for network in plan.networks}.values())


def _join_groups(plans: Sequence[G5kPlan]) -> Iterator[MachineGroup]:
    places = {g.cluster: (g.site, g.network) for plan in plans for g in plan.groups}
    for cluster, (site, network) in places.items():
        named = dict.fromkeys(
            server
            for plan in plans
            for group in plan.groups
            if group.cluster == cluster
            for server in group.servers
        )
        # A server that another plan names may serve a plan that takes any node of the cluster.
        nodes = max(len(named), *(count_nodes(plan).get(cluster, 0) for plan in plans))
        hosts = tuple(f"{_ROLE}.{cluster}.{number}" for number in range(1, nodes + 1))
        if named:
            servers = tuple(named)
            yield MachineGroup(
                hosts[: len(servers)], (_ROLE,), site, cluster, servers, network=network
            )
        if nodes > len(named):
            yield MachineGroup(hosts[len(named) :], (_ROLE,), site, cluster, network=network)
