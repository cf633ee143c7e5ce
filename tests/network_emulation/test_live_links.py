"""What `laggard links` shows: alike links together, what holds now beside what was asked for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.live_links import (
    Look,
    group_links,
    live_links,
    round_trip_probes,
)
from laggard.network_emulation.link_plan import AccessLink, Constraint, LinkPlan, Pair
from laggard.network_emulation.links.backend import LinkCounters

HOSTS = tuple(
    Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, f"10.77.0.{n}")
    for n, (layer, i) in enumerate([("cloud", 1), ("edge", 1), ("edge", 2)], 1)
)
CLOUD, EDGE1, EDGE2 = (host.name for host in HOSTS)
FAR = Constraint(delay_ms=20.0, rate_mbps=10.0)
PAIRS: Mapping[Pair, Constraint] = {
    (CLOUD, EDGE1): FAR,
    (EDGE1, CLOUD): FAR,
    (CLOUD, EDGE2): FAR,
    (EDGE2, CLOUD): FAR,
}
PLAN = LinkPlan(HOSTS, PAIRS)
MILLION = LinkCounters(1_000_000, 1000, 3)


def test_alike_links_are_one_row_each_way() -> None:
    groups = group_links(PLAN, PAIRS.__getitem__)
    assert [(g.src_layer, g.dst_layer, len(g.pairs)) for g in groups] == [
        ("cloud", "edge", 2),
        ("edge", "cloud", 2),
    ]
    assert {g.requested for g in groups} == {g.current for g in groups} == {FAR}


def test_an_event_takes_its_link_out_of_the_row() -> None:
    slow = Constraint(delay_ms=20.0, rate_mbps=1.0)
    groups = group_links(PLAN, lambda pair: slow if pair == (CLOUD, EDGE2) else PAIRS[pair])
    changed = [group for group in groups if group.current != group.requested]
    assert [group.pairs for group in changed] == [((CLOUD, EDGE2),)]
    assert (changed[0].requested, changed[0].current) == (FAR, slow)


def test_an_access_link_caps_what_is_asked_for_and_what_holds() -> None:
    plan = LinkPlan(HOSTS, PAIRS, {EDGE1: AccessLink(EDGE1, up_mbps=2.0)})
    rates = {
        pair: g.current.rate_mbps for g in group_links(plan, PAIRS.__getitem__) for pair in g.pairs
    }
    assert rates[EDGE1, CLOUD] == 2.0
    assert rates[EDGE2, CLOUD] == 10.0
    assert rates[EDGE1, EDGE2] == 2.0  # no rule names it, and yet it is limited
    assert (EDGE2, EDGE1) not in rates


@given(
    st.dictionaries(
        st.tuples(
            st.sampled_from([CLOUD, EDGE1, EDGE2]), st.sampled_from([CLOUD, EDGE1, EDGE2])
        ).filter(lambda pair: pair[0] != pair[1]),
        st.sampled_from([Constraint(), FAR, Constraint(delay_ms=5.0)]),
    )
)
def test_every_constrained_link_is_in_one_row(now: dict[Pair, Constraint]) -> None:
    listed = [
        pair for group in group_links(PLAN, lambda p: now.get(p, PAIRS[p])) for pair in group.pairs
    ]
    assert sorted(listed) == sorted(set(listed))
    assert set(listed) == set(PAIRS)  # what an event makes neutral was asked for and stays listed


def test_one_round_trip_serves_both_directions() -> None:
    groups = group_links(PLAN, PAIRS.__getitem__)
    (probe,) = round_trip_probes(groups, PAIRS.__getitem__, Dilation(2.0))
    assert (probe.src, probe.dst) == (CLOUD, EDGE1)
    assert probe.patience_ms > 2 * 40.0


def test_quantities_are_virtual() -> None:
    """At D = 2, a second of real time is half a second, and an 80 ms round trip took 40."""
    groups = group_links(PLAN, PAIRS.__getitem__)
    before = Look(0, {})
    now = Look(1_000_000_000, {(CLOUD, EDGE1): MILLION, (CLOUD, EDGE2): MILLION})
    down, up = live_links(
        groups, PAIRS.__getitem__, {(CLOUD, EDGE1): 80.0}, before, now, Dilation(2.0)
    )
    assert down.carried_mbps == pytest.approx(2 * 8.0 / 0.5)
    assert (down.dropped, up.dropped, up.carried_mbps) == (6, 0, 0.0)
    assert down.rtt_ms == up.rtt_ms == 40.0
    assert down.requested_rtt_ms == 40.0


def test_a_silent_link_has_no_round_trip() -> None:
    groups = group_links(PLAN, PAIRS.__getitem__)
    shown = live_links(
        groups, PAIRS.__getitem__, {(CLOUD, EDGE1): None}, Look(0, {}), Look(1, {}), Dilation()
    )
    assert [link.rtt_ms for link in shown] == [None, None]
