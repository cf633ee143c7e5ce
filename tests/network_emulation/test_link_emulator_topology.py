"""A plan becomes the right queues."""

from __future__ import annotations

from laggard.network_emulation.link_plan import AccessLink, Constraint, LinkPlan, SharedLink
from laggard.network_emulation.links.userspace.counters import EmulatorCounters, quantile_of
from laggard.network_emulation.links.userspace.topology import build_topology, lossy_senders
from tests.network_emulation.emulated import make_hosts

HOSTS = make_hosts()
CLOUD, FOG, EDGE1, EDGE2 = (host.name for host in HOSTS)


def test_stages_are_shared_where_links_are() -> None:
    plan = LinkPlan(
        HOSTS,
        {(EDGE1, CLOUD): Constraint(5.0)},
        {
            EDGE1: AccessLink(EDGE1, up_mbps=10.0, down_mbps=20.0),
            EDGE2: AccessLink(EDGE2, down_mbps=30.0),
        },
        (SharedLink("wan", frozenset({(EDGE1, CLOUD), (EDGE2, CLOUD)}), 15.0),),
    )
    routes = build_topology(plan).routes
    up, own, wan = routes[EDGE1, CLOUD].stages
    assert own is routes[EDGE1, CLOUD].own
    assert routes[EDGE1, FOG].stages[0] is up
    assert routes[EDGE2, CLOUD].stages[1:] == (wan,)
    assert routes[FOG, EDGE1].stages[-1] is routes[CLOUD, EDGE1].stages[-1]
    assert [stage.ns_per_byte for stage in routes[EDGE1, EDGE2].stages] == [
        800.0,
        0.0,
        8000.0 / 30.0,
    ]
    assert len(routes[CLOUD, FOG].stages) == 1


def test_every_pair_has_a_place_of_its_own() -> None:
    topology = build_topology(LinkPlan(HOSTS))
    assert len(topology.pairs) == 12
    assert [topology.routes[pair].index for pair in topology.pairs] == list(range(12))
    assert all(HOSTS[topology.routes[pair].port].name == pair[1] for pair in topology.pairs)


def test_only_senders_over_lossy_links_go_without_super_packets() -> None:
    lossy = Constraint(loss_percent=1.0)
    assert lossy_senders({(EDGE1, CLOUD): lossy, (CLOUD, EDGE1): Constraint(5.0)}) == {EDGE1}


def test_lateness_is_kept_by_powers_of_two() -> None:
    tally = EmulatorCounters(routes=2)
    assert tally.late_ns(0.5) is None
    for late_ns in (10, 20, 30, 40, 1_000_000):
        tally.note_late(late_ns)
    assert tally.late_ns(0.8) == 63
    assert tally.late_ns(1.0) == 2**20 - 1
    assert max(tally.gauges) == 1_000_000
    assert quantile_of([], 0.5) is None
