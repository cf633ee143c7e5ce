"""Bottlenecks between real machines: which host has which, and what is refused at its line."""

from __future__ import annotations

import pytest

from laggard.core.corrections.model_problems import validate_model
from laggard.core.hosts import Host
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.link_plan import AccessLink, LinkPlan, SharedLink
from laggard.network_emulation.links.end_host_shaping import (
    EgressLimit,
    IngressLimit,
    bottleneck_problems,
    impossible_links,
    plan_inlets,
    plan_outlets,
)
from laggard.network_emulation.links.plan_links import plan_links
from laggard.network_emulation.model import Heterogeneity, Network

HOSTS = tuple(
    Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, f"10.0.0.{n}")
    for n, (layer, i) in enumerate(
        [("cloud", 1), ("fog", 1), ("fog", 2), ("edge", 1), ("edge", 2)], 1
    )
)
CLOUD, FOG1, FOG2, EDGE1, EDGE2 = (host.name for host in HOSTS)


def planned(text: str) -> tuple[LinkPlan, tuple[str, ...]]:
    source = parse_yaml(text, "heterogeneity.yaml")
    heterogeneity = validate_model(source, Heterogeneity)
    plan = plan_links(Network(networks=None), heterogeneity, HOSTS)
    return plan, tuple(str(problem) for problem in bottleneck_problems(plan, heterogeneity, source))


def test_a_downlink_is_on_the_host_that_receives() -> None:
    plan, problems = planned('deterministic: [{hosts: "edge.*", uplink: 5mbit, downlink: 20mbit}]')
    assert not problems
    assert plan_inlets(plan) == (
        IngressLimit(EDGE1, 20.0, (CLOUD, FOG1, FOG2, EDGE2), (EDGE1,)),
        IngressLimit(EDGE2, 20.0, (CLOUD, FOG1, FOG2, EDGE1), (EDGE2,)),
    )
    assert plan_outlets(plan) == ()


def test_what_one_host_shares_with_several_is_on_that_host() -> None:
    plan, problems = planned('deterministic: [{between: ["cloud.*", "edge.*"], shared: 30mbit}]')
    assert not problems
    assert plan_outlets(plan) == (EgressLimit(CLOUD, 30.0, (EDGE1, EDGE2)),)
    assert plan_inlets(plan) == (IngressLimit(CLOUD, 30.0, (EDGE1, EDGE2), (CLOUD,)),)


def test_what_two_groups_share_passes_a_host_of_each() -> None:
    """In each direction, packets pass the first host of the group that receives them."""
    plan, problems = planned('deterministic: [{between: ["edge.*", "fog.*"], shared: 3mbit}]')
    assert not problems
    assert plan_outlets(plan) == ()
    assert plan_inlets(plan) == (
        IngressLimit(FOG1, 3.0, (EDGE1, EDGE2), (FOG1, FOG2)),
        IngressLimit(EDGE1, 3.0, (FOG1, FOG2), (EDGE1, EDGE2)),
    )


def test_a_host_with_a_downlink_passes_nothing_on() -> None:
    plan, problems = planned(
        'deterministic: [{between: ["edge.*", "fog.*"], shared: 3mbit}, {hosts: fog.trainer.1.1,'
        " downlink: 9mbit}]"
    )
    assert not problems
    assert IngressLimit(FOG2, 3.0, (EDGE1, EDGE2), (FOG1, FOG2)) in plan_inlets(plan)


def test_several_bottlenecks_of_one_host_are_apart() -> None:
    shared = (
        'deterministic: [{between: ["edge.*", "cloud.*"], shared: 30mbit}, {between: ["fog.*",'
        ' "cloud.*"], shared: 9mbit}]'
    )
    plan, problems = planned(shared)
    assert not problems
    assert plan_inlets(plan) == (
        IngressLimit(CLOUD, 30.0, (EDGE1, EDGE2), (CLOUD,)),
        IngressLimit(CLOUD, 9.0, (FOG1, FOG2), (CLOUD,)),
    )


def test_one_link_alone_is_on_the_host_that_sends() -> None:
    plan = LinkPlan(HOSTS, shared=(SharedLink("s", frozenset({(FOG1, EDGE1)}), 3.0),))
    assert plan_outlets(plan) == (EgressLimit(FOG1, 3.0, (EDGE1,)),)
    assert plan_inlets(plan) == ()


@pytest.mark.parametrize(
    ("entries", "value", "said"),
    [
        (
            '{between: ["edge.*", "edge.*"], shared: 3mbit}',
            "edge.* and edge.*",
            "each of its hosts sends and receives",
        ),
        (
            '{between: ["edge.*", "cloud.*"], shared: 3mbit}, {hosts: "cloud.*", downlink: 9mbit}',
            "edge.* and cloud.*",
            f"{CLOUD} also has a downlink",
        ),
    ],
)
def test_the_rest_is_refused_at_its_line(entries: str, value: str, said: str) -> None:
    _, problems = planned(
        'deterministic:\n  - {hosts: "edge.*", cpu: 50%}\n  -'
        f" {entries.replace('}, {', '}' + chr(10) + '  - {')}\n"
    )
    (problem,) = problems
    assert problem.startswith(f"heterogeneity.yaml:3:15: {value}: {said}")
    assert "uplinks or downlinks instead, or run with --on local" in problem


def test_an_uplink_beside_a_shared_link_is_no_contradiction() -> None:
    access = {CLOUD: AccessLink(CLOUD, 50.0, None)}
    shared = SharedLink("s", frozenset({(CLOUD, EDGE1), (CLOUD, EDGE2)}), 9.0)
    assert impossible_links(LinkPlan(HOSTS, {}, access, (shared,))) == {}
