"""Plans of the nodes that serve a scenario's requests. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.link_plan import Constraint
from laggard.scenario.load import Scenario
from laggard.workloads.inference.serving_plan import ServingLink, ServingPlan
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.plan import place, place_server
from laggard.workloads.specification.churn import turns
from laggard.workloads.transport.keys import make_endpoints
from laggard.workloads.transport.plan import FIRST_PORT

UNLIMITED_MBPS = 1000.0
"""Rate that a device believes a link has, if the scenario does not limit it."""

_TIMEOUT_S = 300.0


def place_nodes(workload: InferenceWorkload, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the host of every node: of all devices, and then of the server, if there is one.

    Raises:
        InputError: a pattern matches no host.
    """
    devices = place(workload.placement, hosts)
    if workload.placement.server is None:
        return devices
    server = place_server(workload.placement, hosts)
    return (*(each for each in devices if each.name != server.name), server)


def list_departures(
    workload: InferenceWorkload, hosts: Sequence[Host]
) -> tuple[tuple[float, str], ...]:
    """Return the virtual times at which nodes leave, ascending, with their hosts."""
    return tuple((turn.at_s, turn.host) for turn in turns(workload.churn, hosts, hosts))


def plan_nodes(
    scenario: Scenario, output_dir: Path, control_folder: Path, dilation: Dilation
) -> tuple[ServingPlan, ...]:
    """Return the plans of all nodes.

    Args:
        scenario: scenario that answers requests.
        output_dir: folder of the records.
        control_folder: run folder, in which the emulation's control socket is.
        dilation: ratio of real to virtual time.
    """
    workload = scenario.application
    assert isinstance(workload, InferenceWorkload)
    hosts = place_nodes(workload, scenario.hosts)
    has_server = workload.placement.server is not None
    addresses = [f"{host.address}:{FIRST_PORT + node}" for node, host in enumerate(hosts)]
    endpoints = make_endpoints(addresses, _TIMEOUT_S * dilation.factor)
    devices = len(hosts) - has_server
    plans = []
    for node in range(len(hosts)):
        others: set[int] = set()
        if node < devices and has_server:
            others.add(devices)
        if node < devices and workload.ensemble is not None:
            others |= set(range(devices)) - {node}
        plans.append(
            ServingPlan(
                node=node,
                hosts=tuple(host.name for host in hosts),
                devices=devices,
                shares=tuple(scenario.shares[host.name] for host in hosts),
                workload=workload,
                output_dir=str(output_dir),
                control_folder=str(control_folder),
                dilation=dilation.factor,
                arrivals=workload.read_arrivals(scenario.folder),
                links=tuple(_plan_link(scenario, hosts, node, other) for other in sorted(others)),
                endpoint=endpoints[node] if has_server or workload.ensemble else None,
            )
        )
    return tuple(plans)


def _plan_link(scenario: Scenario, hosts: Sequence[Host], node: int, other: int) -> ServingLink:
    ways = [
        scenario.links.pairs.get((hosts[src].name, hosts[dst].name), Constraint())
        for src, dst in ((node, other), (other, node))
    ]
    return ServingLink(
        node=other,
        rate_mbps=min(each.rate_mbps or UNLIMITED_MBPS for each in ways),
        round_trip_s=max(sum(each.delay_ms for each in ways) / 1e3, 1e-4),
    )
