"""Link profiles: the sources' numbers, what replaces what, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.dynamics.changes import Overlay, TimedChange
from laggard.network_emulation.dynamics.expand import expand_events
from laggard.network_emulation.jitter import delay_grid_ms
from laggard.network_emulation.links.plan_links import Constraint, LinkPlan, plan_links
from laggard.network_emulation.model import Heterogeneity, Network
from laggard.network_emulation.profiles import load_profiles

HOSTS = tuple(
    Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, f"10.77.0.{n}")
    for n, (layer, i) in enumerate([("fog", 1), ("edge", 1), ("edge", 2)], 1)
)
FOG, EDGE1, EDGE2 = (host.name for host in HOSTS)
RULE = {
    "src": "edge.*",
    "dst": "fog.*",
    "delay": "9ms",
    "rate": "3mbit",
    "loss": "1%",
    "symmetric": True,
}


def read(heterogeneity: str, rule: dict[str, object] = RULE) -> tuple[LinkPlan, Heterogeneity]:
    first = parse_yaml(json.dumps({"networks": [rule]}), "network.yaml")
    second = parse_yaml(heterogeneity, "heterogeneity.yaml")
    entries = validate_model(second, Heterogeneity)
    return plan_links(validate_model(first, Network), entries, HOSTS, first, second), entries


def problem(heterogeneity: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        read(heterogeneity)
    (found,) = caught.value.problems
    return str(found)


@pytest.mark.parametrize(
    ("name", "rtt_ms", "up_mbps", "down_mbps"),
    [
        ("lan", 0.5, 1000, 1000),
        ("metro", 1.0, 1000, 1000),
        ("wan", 45, 67, 67),
        ("dsl", 50, 0.384, 1.5),
        ("lte", 70, 6, 13),
        ("nr5g", 8, 50, 100),
        ("wifi", 3.0, 72.2, 72.2),
        ("lora", 1012.5, 0.00547, 0.00547),
        ("satellite", 50, 13.9, 97.2),
    ],
)
def test_round_trips_and_rates_are_the_sources(
    name: str, rtt_ms: float, up_mbps: float, down_mbps: float
) -> None:
    profile = load_profiles()[name]
    assert (profile.up.rate_mbps, profile.down.rate_mbps) == (up_mbps, pytest.approx(down_mbps))
    round_trips = round_trips_ms(name)
    assert round_trips[len(round_trips) // 2] == pytest.approx(rtt_ms, rel=0.02)


def round_trips_ms(name: str) -> list[float]:
    ways = [way.constraint for way in (load_profiles()[name].up, load_profiles()[name].down)]
    up, down = (delay_grid_ms(way.delay_ms, way.jitter_ms, way.distribution) for way in ways)
    return sorted(there + back for there in up for back in down)


def test_spreads_are_the_sources() -> None:
    satellite, wifi = round_trips_ms("satellite"), round_trips_ms("wifi")
    quarter = len(satellite) // 4
    assert (satellite[quarter], satellite[3 * quarter]) == (
        pytest.approx(40, abs=0.5),
        pytest.approx(60, abs=0.5),
    )
    assert wifi[len(wifi) * 9 // 10] == pytest.approx(6.5, abs=0.2), "as its source's line says"


def test_every_profile_is_listed_where_people_look_and_can_be_had_for_a_while() -> None:
    root = Path(__file__).parents[2]
    texts = [
        (root / path).read_text(encoding="utf-8")
        for path in (
            "docs/how_to/limit_links.md",
            "src/laggard/scenario/template/heterogeneity.yaml",
        )
    ]
    for name, profile in load_profiles().items():
        assert all(name in text for text in texts)
        for way in (profile.up, profile.down):
            assert not way.jitter_ms or way.distribution != "uniform", (
                "netem has no way back to that"
            )


def test_a_profile_replaces_the_whole_constraint_both_ways() -> None:
    pairs = read('{deterministic: [{src: "edge.*", dst: "fog.*", profile: lte}]}')[0].pairs
    assert set(pairs) == {(e, FOG) for e in (EDGE1, EDGE2)} | {(FOG, e) for e in (EDGE1, EDGE2)}
    assert pairs[EDGE1, FOG] == Constraint(35.0, rate_mbps=6.0)
    assert pairs[FOG, EDGE1] == Constraint(35.0, rate_mbps=13.0)


def test_entries_hold_in_their_order() -> None:
    jitter, profile = (
        '{src: "edge.*", dst: "fog.*", jitter: 2ms}',
        '{src: "edge.*", dst: "fog.*", profile: lte}',
    )
    after = read(f"{{deterministic: [{profile}, {jitter}]}}")[0].pairs
    before = read(f"{{deterministic: [{jitter}, {profile}]}}")[0].pairs
    assert after[EDGE1, FOG] == replace(before[EDGE1, FOG], jitter_ms=2.0)
    assert before[EDGE1, FOG].jitter_ms == 0.0


@pytest.mark.parametrize(
    "head", ["", "at: 1s, for: 1s, ", "random: {every: 5s, for: 1s, seed: 1}, "]
)
@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ('src: "edge.*", dst: "fog.*", profile: 6g', "use lan, metro, wan, dsl, lte, nr5g, wifi, lora, satellite"),
        ('src: "edge.*", dst: "fog.*", profile: wify', "did you mean `wifi`?"),
        ('src: "edge.*", dst: "fog.*", profile: lte, symmetric: true', "in both directions"),
        ('src: "edge.*", dst: "fog.*", profile: lte, rate: 1mbit', "defines the whole link"),
        ('src: "edge.*", dst: "fog.*", profile: lte, jitter: 1ms', "defines the whole link"),
        ('src: "edge.*", dst: "edge.*", profile: wifi', "use two groups"),
    ],
)  # fmt: skip
def test_what_a_profile_does_not_go_with_is_refused_at_its_place(
    head: str, rest: str, expected: str
) -> None:
    section = "dynamic" if head else "deterministic"
    found = problem(f"{section}:\n  - {{{head}{rest}}}")
    assert found.startswith("heterogeneity.yaml:2:")
    assert expected in found
    assert "-rule" not in found
    if rest.endswith("1mbit"):
        assert f"heterogeneity.yaml:2:{len(head) + len(rest) + 1}: {section}.0.rate: " in found


def test_a_profile_for_a_while_is_up_and_down_and_leaves_what_was() -> None:
    plan, entries = read(
        '{dynamic: [{at: 2s, for: 3s, src: "edge.*", dst: "fog.*", profile: satellite}]}'
    )
    changes = expand_events(entries, HOSTS, plan, 60.0)
    assert [(change.at_s, change.kind) for change in changes] == [(2.0, "begin")] * 2 + [
        (5.0, "end")
    ] * 2
    overlay = Overlay({}, plan.pairs)
    for change in changes[:2]:
        overlay.apply(change)
    assert overlay.constraint((EDGE2, FOG)) == Constraint(25.0, 10.5, 13.9, 0.0, "normal")
    assert overlay.constraint((FOG, EDGE2)) == Constraint(25.0, 10.5, 97.2, 0.0, "normal")
    overlay.apply(TimedChange(3.0, "begin", 99, ((EDGE2, FOG),), (("jitter_ms", 1.0),)))
    assert overlay.constraint((EDGE2, FOG)) == Constraint(25.0, 1.0, 13.9, 0.0, "normal"), (
        "a change of what is there"
    )
    overlay.apply(TimedChange(4.0, "end", 99, ((EDGE2, FOG),)))
    for change in changes[2:]:
        overlay.apply(change)
    assert {pair: overlay.constraint(pair) for pair in plan.pairs} == plan.pairs


def test_a_random_profile_has_both_ways_at_the_same_moments() -> None:
    plan, entries = read(
        '{dynamic: [{random: {every: 10s, for: 2s, seed: 3}, src: "edge.*", dst: "fog.*", profile:'
        " dsl}]}"
    )
    changes = expand_events(entries, HOSTS, plan, 50.0)
    ups = [(c.at_s, c.kind) for c in changes if c.targets == ((EDGE1, FOG), (EDGE2, FOG))]
    downs = [(c.at_s, c.kind) for c in changes if c.targets == ((FOG, EDGE1), (FOG, EDGE2))]
    assert len(ups) == 10
    assert ups == downs
    assert len({change.event for change in changes}) == 10


@pytest.mark.parametrize(
    ("entries", "refused"),
    [
        ('deterministic: [{src: "edge.*", dst: "fog.*", jitter: 1ms}]', True),
        (
            'deterministic: [{src: "edge.*", dst: "fog.*", jitter: 1ms, distribution: normal}]',
            False,
        ),
        ('deterministic: [{src: "edge.*", dst: "fog.*", burst: 2}]', False),
    ],
)
def test_a_table_of_jitter_does_not_come_over_uniform_jitter(entries: str, refused: bool) -> None:
    """`tc qdisc change` leaves netem's table where no other is named, and there is none of the
    uniform distribution."""
    event = '\ndynamic:\n  - {at: 1s, for: 1s, src: "edge.*", dst: "fog.*", profile: wifi}'
    if refused:
        assert "heterogeneity.yaml:3:" in problem(entries + event)
        assert "cannot return to uniform jitter" in problem(entries + event)
    else:
        assert read(entries + event)[0].pairs


def test_a_table_of_jitter_does_not_come_before_an_events_uniform_jitter() -> None:
    events = """dynamic:
  - {at: 1s, for: 1s, src: "edge.*", dst: "fog.*", profile: wifi}
  - {at: 9s, for: 1s, src: "fog.*", dst: "edge.*", jitter: 1ms}
"""
    assert problem(events).startswith("heterogeneity.yaml:2:")
    table = 'deterministic: [{src: "fog.*", dst: "edge.*", jitter: 0ms, distribution: pareto}]\n'
    assert read(table + events)[0].pairs[FOG, EDGE1].distribution == "pareto"
