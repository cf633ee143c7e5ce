"""Rules and entries become one plan for all ordered pairs, and contradictions become located
problems."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import ScenarioError
from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.core.yaml_source import YamlSource, parse_yaml
from laggard.network_emulation.compute.plan_shares import plan_shares
from laggard.network_emulation.links.link_warnings import link_warnings
from laggard.network_emulation.links.plan_links import (
    AccessLink,
    Constraint,
    LinkPlan,
    dilate_links,
    plan_links,
    tier_pairs,
)
from laggard.network_emulation.model import Heterogeneity, Network


def continuum(**layers: int) -> tuple[Host, ...]:
    names = [(layer, i) for layer, count in layers.items() for i in range(1, count + 1)]
    return tuple(
        Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, f"10.77.0.{n}")
        for n, (layer, i) in enumerate(names, 1)
    )


HOSTS = continuum(cloud=1, fog=2, edge=2)
CLOUD, FOG1, FOG2, EDGE1, EDGE2 = (host.name for host in HOSTS)


def sources(
    network: str, heterogeneity: str
) -> tuple[Network, Heterogeneity, YamlSource, YamlSource]:
    first, second = (
        parse_yaml(network, "network.yaml"),
        parse_yaml(heterogeneity, "heterogeneity.yaml"),
    )
    return validate_model(first, Network), validate_model(second, Heterogeneity), first, second


def plan(network: str = "", heterogeneity: str = "", hosts: tuple[Host, ...] = HOSTS) -> LinkPlan:
    rules, entries, first, second = sources(network, heterogeneity)
    return plan_links(rules, entries, hosts, first, second)


def problems(network: str = "", heterogeneity: str = "") -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        plan(network, heterogeneity)
    return [str(problem) for problem in caught.value.problems]


def rule(
    src: str, dst: str, delay: str = "10ms", rate: str = "100mbit", **more: object
) -> dict[str, object]:
    return {"src": src, "dst": dst, "delay": delay, "rate": rate, **more}


def rules(*written: dict[str, object]) -> str:
    return json.dumps({"networks": list(written)})


def test_a_rule_acts_on_every_ordered_pair_in_its_direction_only() -> None:
    pairs = plan(rules(rule("edge.*", "fog.*", loss="1%"))).pairs
    assert set(pairs) == {(e, f) for e in (EDGE1, EDGE2) for f in (FOG1, FOG2)}
    assert set(pairs.values()) == {Constraint(delay_ms=10.0, rate_mbps=100.0, loss_percent=1.0)}


def test_a_pattern_may_be_a_list_with_spaces() -> None:
    pairs = plan(rules(rule("cloud.*, fog.trainer.1.2", "edge.*[0]"))).pairs
    assert set(pairs) == {(CLOUD, EDGE1), (FOG2, EDGE1)}


def test_symmetric_is_both_directions() -> None:
    pairs = plan(rules(rule("cloud.*", EDGE1, symmetric=True))).pairs
    assert set(pairs) == {(CLOUD, EDGE1), (EDGE1, CLOUD)}


def test_all_rules_of_a_host_hold_at_once() -> None:
    """E2Clab keeps only the last rule of a host; here every one holds."""
    pairs = plan(rules(rule("edge.*", "fog.*", "5ms"), rule("edge.*", "cloud.*", "40ms"))).pairs
    assert (pairs[EDGE1, FOG1].delay_ms, pairs[EDGE1, CLOUD].delay_ms) == (5.0, 40.0)


def test_a_later_rule_replaces_the_whole_constraint_of_the_same_pair() -> None:
    pairs = plan(
        rules(rule("edge.*", "fog.*", "5ms", loss="2%"), rule(EDGE1, "fog.*", "9ms", "1mbit"))
    ).pairs
    assert pairs[EDGE1, FOG1] == Constraint(delay_ms=9.0, rate_mbps=1.0)
    assert pairs[EDGE2, FOG1] == Constraint(delay_ms=5.0, rate_mbps=100.0, loss_percent=2.0)


def test_a_host_has_no_link_to_itself() -> None:
    assert set(plan(rules(rule("fog.*", "fog.*"))).pairs) == {(FOG1, FOG2), (FOG2, FOG1)}


@pytest.mark.parametrize(
    ("written", "where", "expected"),
    [
        (rule("edgy.*", "fog.*"), "network.yaml:2:11", "matches no host"),
        (rule(FOG1, "fgo.*"), "network.yaml:2:", "matches no host"),
        (rule(FOG1, FOG1), "network.yaml:2:3", "no link to itself"),
        (rule("~(", "fog.*"), "network.yaml:2:", "not a regular expression"),
    ],
)
def test_rules_that_reach_no_link_are_located(
    written: dict[str, object], where: str, expected: str
) -> None:
    (problem,) = problems("networks:\n- " + json.dumps(written))
    assert problem.startswith(where)
    assert expected in problem


def test_every_problem_is_reported_at_once() -> None:
    network = rules(rule("a.*", "b.*"), rule("edge.*", "fog.*"))
    assert (
        len(problems(network, '{deterministic: [{hosts: "c.*", uplink: 1mbit}], dynamic: []}')) == 3
    )


def test_jitter_varies_a_delay_and_nothing_else() -> None:
    network = rules(rule("edge.*", "fog.*", loss="1%"))
    pairs = plan(network, '{deterministic: [{src: "edge.*", dst: "fog.*", jitter: 2ms}]}').pairs
    assert set(pairs.values()) == {Constraint(10.0, 2.0, 100.0, 1.0)}


def test_jitter_has_a_distribution() -> None:
    network = rules(rule("edge.*", "fog.*"))
    pairs = plan(
        network,
        '{deterministic: [{src: "edge.*", dst: "fog.*", jitter: 2ms, distribution: normal}]}',
    ).pairs
    assert set(pairs.values()) == {Constraint(10.0, 2.0, 100.0, distribution="normal")}
    with pytest.raises(ScenarioError, match="must be uniform, normal or pareto"):
        plan(
            network,
            '{deterministic: [{src: "edge.*", dst: "fog.*", jitter: 2ms, distribution: gauss}]}',
        )


def test_bursts_are_of_the_loss_that_the_rules_give() -> None:
    network = rules(rule("edge.*", "fog.*", loss="1%"))
    pairs = plan(
        network,
        '{deterministic: [{src: "edge.*", dst: "fog.*", burst: 5}, {src: "edge.*", dst: "fog.*",'
        " jitter: 2ms}]}",
    ).pairs
    assert set(pairs.values()) == {Constraint(10.0, 2.0, 100.0, 1.0, burst_packets=5.0)}


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ('{src: "edge.*", dst: "fog.*", burst: 0.5}', "at least 1"),
        ('{src: "edge.*", dst: "fog.*", burst: 5 packets}', "must be a number"),
        ('{src: "edge.*", dst: "fog.*"}', "add jitter or burst"),
        ('{src: "edge.*", dst: "fog.*", distribution: normal}', "add `jitter: 0ms`"),
        ('{src: "edge.*", dst: "fog.*", burst: 3}', "3 packets is too short for a loss of 80 % from edge.trainer.1.1 to fog.trainer.1.1"),
    ],
)  # fmt: skip
def test_bursts_that_cannot_be_are_refused_at_their_line(entry: str, expected: str) -> None:
    (problem,) = problems(
        rules(rule("edge.*", "fog.*", loss="80%")), f"deterministic:\n  - {entry}"
    )
    assert problem.startswith("heterogeneity.yaml:2:")
    assert expected in problem


def test_the_fix_of_a_short_burst_is_one() -> None:
    network = rules(rule("edge.*", "fog.*", loss="80%"))
    entry = '{{deterministic: [{{src: "edge.*", dst: "fog.*", burst: {}}}]}}'
    (problem,) = problems(network, entry.format(3))
    assert problem.endswith("set `burst` to at least 4")
    assert plan(network, entry.format(4)).pairs[EDGE1, FOG1].burst_packets == 4


def test_a_loss_too_large_for_its_burst_is_refused_where_an_event_gives_it() -> None:
    entries = """deterministic:
  - {src: "edge.*", dst: "fog.*", burst: 3}
dynamic:
  - {at: 1s, for: 1s, src: "edge.*", dst: "fog.*", loss: 100%}
  - {at: 1s, for: 1s, src: "edge.*", dst: "fog.*", loss: 90%}
  - {at: 1s, for: 1s, src: "edge.*", dst: "cloud.*", loss: 90%}
"""
    (problem,) = problems(rules(rule("edge.*", "fog.*")), entries)
    assert problem.startswith("heterogeneity.yaml:5:")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ("down: true, loss: 5%", "a link that is down loses every packet"),
        ("down: true, profile: lte", "a link that is down loses every packet"),
        ("down: false", "this must be True"),
        ("symmetric: true", "add delay, rate, loss, jitter, profile or down"),
    ],
)
def test_down_excludes_other_properties(keys: str, said: str) -> None:
    (problem,) = problems("", f"dynamic: [{{at: 1s, for: 1s, src: edge.*, dst: fog.*, {keys}}}]")
    assert said in problem


def test_a_burst_of_losses_that_never_happen_is_warned_of() -> None:
    entries = """deterministic:
  - {src: "edge.*", dst: "fog.*", burst: 3}
  - {src: "fog.*", dst: "edge.*", burst: 3}
dynamic:
  - {at: 1s, for: 1s, src: "edge.*", dst: "fog.*", loss: 10%}
"""
    read = sources(rules(rule("edge.*", "fog.*", symmetric=True)), entries)
    planned = plan_links(read[0], read[1], HOSTS, read[2], read[3])
    (warning,) = [
        str(each) for each in link_warnings(planned, read[0], read[1], [], read[2], read[3])
    ]
    assert warning.startswith("heterogeneity.yaml:3:")
    assert "these links have no loss" in warning


def test_a_distribution_without_jitter_constrains_nothing() -> None:
    assert Constraint(distribution="normal").is_neutral
    assert Constraint(rate_mbps=1.0, distribution="normal").only_rate
    assert not Constraint(jitter_ms=1.0).only_rate


def test_jitter_above_its_delay_is_refused() -> None:
    entry = 'deterministic:\n  - {src: "edge.*", dst: "fog.*", jitter: 20ms}'
    (problem,) = problems(rules(rule("edge.*", "fog.*")), entry)
    assert problem.startswith("heterogeneity.yaml:2:")
    assert "must not exceed the delay" in problem


def test_access_links_merge_key_by_key() -> None:
    entries = (
        '{deterministic: [{hosts: "edge.*", uplink: 20mbit}, {hosts: "edge.*", downlink: 50mbit}]}'
    )
    access = plan("", entries).access
    assert access == {name: AccessLink(name, 20.0, 50.0) for name in (EDGE1, EDGE2)}


def test_one_flow_sees_the_slowest_rate_on_its_way() -> None:
    entries = """{deterministic: [
        {hosts: "edge.*", uplink: 20mbit}, {hosts: "fog.*", downlink: 15mbit}, {between: ["edge.*", "cloud.*"], shared: 5mbit}]}"""
    planned = plan(rules(rule("edge.*", "fog.*", symmetric=True)), entries)
    rates = [
        planned.expected(*pair).rate_mbps
        for pair in ((EDGE1, FOG1), (FOG1, EDGE1), (EDGE1, CLOUD), (CLOUD, FOG1))
    ]
    assert rates == [15.0, 100.0, 5.0, 15.0]


def test_a_shared_link_has_a_bottleneck_in_each_direction() -> None:
    forth, back = plan(
        "", '{deterministic: [{between: ["edge.*", "cloud.*"], shared: 5mbit}]}'
    ).shared
    assert forth.pairs == {(EDGE1, CLOUD), (EDGE2, CLOUD)}
    assert back.pairs == {(CLOUD, EDGE1), (CLOUD, EDGE2)}


def test_a_group_with_itself_shares_one_medium() -> None:
    (medium,) = plan("", '{deterministic: [{between: ["edge.*", "edge.*"], shared: 5mbit}]}').shared
    assert medium.pairs == {(EDGE1, EDGE2), (EDGE2, EDGE1)}


def test_a_pair_crosses_at_most_one_shared_link() -> None:
    entry = '{between: ["edge.*", "cloud.*"], shared: 5mbit}'
    (problem,) = problems("", f"deterministic:\n  - {entry}\n  - {entry}")
    assert problem.startswith("heterogeneity.yaml:3:")


def test_links_that_only_an_event_names_are_there_but_neutral() -> None:
    planned = plan("", '{dynamic: [{at: 1s, for: 1s, src: "edge.*", dst: "cloud.*", rate: 1mbit}]}')
    assert planned.pairs == {(EDGE1, CLOUD): Constraint(), (EDGE2, CLOUD): Constraint()}
    assert tier_pairs(planned) == ()


def test_a_rule_for_a_million_links_is_refused() -> None:
    with pytest.raises(ScenarioError, match="the limit is"):
        plan(rules(rule("edge.*", "edge.*")), hosts=continuum(edge=1_100))


def test_tier_pairs_group_what_is_alike() -> None:
    network = rules(
        rule("edge.*", "fog.*"), rule("edge.*", "cloud.*", "40ms"), rule(EDGE1, FOG1, "1ms")
    )
    groups = tier_pairs(plan(network))
    assert {(g.src_layer, g.dst_layer, g.constraint.delay_ms, len(g.pairs)) for g in groups} == {
        ("edge", "fog", 10.0, 3),
        ("edge", "cloud", 40.0, 2),
        ("edge", "fog", 1.0, 1),
    }


@given(st.floats(1, 50), st.floats(0.1, 1e4), st.floats(0, 100), st.floats(0.5, 1e3))
def test_dilation_keeps_bandwidth_times_delay_and_loss(
    factor: float, rate: float, loss: float, delay: float
) -> None:
    before = Constraint(delay, delay / 2, rate, loss, "pareto")
    planned = LinkPlan(HOSTS, {(EDGE1, FOG1): before}, {EDGE1: AccessLink(EDGE1, rate, None)})
    dilated = dilate_links(planned, Dilation(factor))
    after = dilated.pairs[EDGE1, FOG1]
    assert after.rate_mbps is not None
    assert after.rate_mbps * after.delay_ms == pytest.approx(rate * delay)
    assert after.delay_ms == pytest.approx(delay * factor)
    assert after.jitter_ms == pytest.approx(delay * factor / 2)
    assert (after.loss_percent, after.distribution) == (loss, "pareto")
    assert dilated.access[EDGE1].up_mbps == pytest.approx(rate / factor)
    assert dilated.access[EDGE1].down_mbps is None


def test_shares_are_one_core_unless_said_and_the_last_entry_wins() -> None:
    text = '{deterministic: [{hosts: "edge.*", cpu: 25%}, {hosts: "edge.trainer.1.2", cpu: 50%}]}'
    _, entries, _, source = sources("", text)
    assert plan_shares(entries, HOSTS, source) == {
        CLOUD: 1.0,
        FOG1: 1.0,
        FOG2: 1.0,
        EDGE1: 0.25,
        EDGE2: 0.5,
    }


def test_warnings_name_bare_groups_and_tiers_without_a_rule() -> None:
    network = "networks:\n  - {src: edge, dst: 'fog.*', delay: 1ms, rate: 1mbit}"
    read = sources(network, "")
    planned = plan_links(read[0], read[1], HOSTS, read[2], read[3])
    talking = [FOG1, EDGE1]
    shown = [str(w) for w in link_warnings(planned, read[0], read[1], talking, read[2], read[3])]
    assert shown == [
        (
            "network.yaml:2:11: edge: edge alone means only its first host, as in E2Clab — to name"
            " all its hosts, write edge.*"
        ),
        (
            "network.yaml:2:3: fog to edge: 1 of 1 host pairs exchange training traffic over a link"
            " that no rule constrains — add a rule from fog.* to edge.*, or add `symmetric: true` to"
            " the rule in the other direction"
        ),
    ]


def test_a_complete_file_has_no_warnings() -> None:
    tiers = [("cloud.*", "fog.*"), ("cloud.*", "edge.*"), ("fog.*", "edge.*")]
    read = sources(rules(*(rule(a, b, symmetric=True) for a, b in tiers)), "")
    planned = plan_links(read[0], read[1], HOSTS)
    assert link_warnings(planned, read[0], read[1], [host.name for host in HOSTS]) == ()
