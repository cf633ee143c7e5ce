"""`placement: {order: topology}`: ranks avoid the slow way, and all else stays as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.hosts import Host
from laggard.network_emulation.link_plan import AccessLink, Constraint, LinkPlan, SharedLink
from laggard.scenario.load import Scenario, load_scenario
from laggard.scenario.ring_topology import build_ring_links
from tests.workloads.conftest import make_hosts

TOPOLOGY = Path(__file__).resolve().parents[2] / "experiments" / "topology"


def load(*overrides: str) -> Scenario:
    return load_scenario(TOPOLOGY, overrides)


def tiers_of(scenario: Scenario) -> list[str]:
    return [host.layer for host in scenario.ranks]


def test_the_ring_avoids_the_slow_way_from_the_edge_to_the_cloud() -> None:
    listed, ordered = load("workload.placement.order=listed"), load()
    assert tiers_of(listed) == ["edge", "edge", "fog", "fog", "cloud", "cloud"]
    tiers = tiers_of(ordered)
    neighbors = [{a, b} for a, b in zip(tiers, (*tiers[1:], tiers[0]), strict=True)]
    assert {"edge", "cloud"} not in neighbors
    assert ordered.ranks[0] == listed.ranks[0] == ordered.reference_host
    assert {*ordered.ranks} == {*listed.ranks}
    # Whatever plans workers reads the placement, and must find the same order there.
    assert ordered.workload.placement.workers == tuple(host.name for host in ordered.ranks)
    assert b"order: topology" in ordered.files()["workload.yaml"]


def test_ranks_of_one_host_stay_together() -> None:
    ranks = load("workload.placement.per_host=2").ranks
    assert [ranks[2 * i] for i in range(6)] == [ranks[2 * i + 1] for i in range(6)]
    assert ranks[::2] == load().ranks


def test_only_hosts_that_train_are_ordered() -> None:
    ranks = load('workload.placement.workers=["cloud.*", "edge.*", "fog.trainer.1.2"]').ranks
    assert [host.layer for host in ranks].count("fog") == 1
    assert len(ranks) == 5
    assert ranks[0].layer == "cloud"


def test_another_order_is_refused_with_the_possible_ones() -> None:
    with pytest.raises(Exception, match=r"order: .*listed.*topology"):
        load("workload.placement.order=fastest")


def test_access_and_shared_links_count() -> None:
    hosts: tuple[Host, ...] = tuple(make_hosts(3))
    a, b, c = (host.name for host in hosts)
    plan = LinkPlan(
        hosts,
        {(a, b): Constraint(delay_ms=3.0, rate_mbps=50.0), (b, a): Constraint(delay_ms=4.0)},
        {c: AccessLink(c, up_mbps=7.0, down_mbps=9.0)},
        (SharedLink("cable", frozenset({(a, c), (b, c)}), 5.0),),
    )
    found = build_ring_links(hosts, plan)
    hops = {
        (here, there): hop
        for here, row in enumerate(found.hops)
        for there, hop in enumerate(row)
        if hop is not None
    }
    assert len(hops) == 6
    assert hops[0, 1].rtt_ms == hops[1, 0].rtt_ms == 7.0
    assert hops[0, 1].rate_mbps == 50.0
    assert hops[1, 0].rate_mbps == float("inf")
    assert hops[2, 0].rate_mbps == 7.0
    assert found.shared == {(0, 2): 0, (1, 2): 0}
    assert found.compute_parts_s((0, 2, 1))[0] == pytest.approx(found.part_bytes * 8e-6 / 5.0)
