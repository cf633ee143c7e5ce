"""`network.yaml` keeps E2Clab's meaning and loses its nonsense; `heterogeneity.yaml` parses as the
design shows it."""

from __future__ import annotations

import json

import pytest
from e2clab.schemas.network_schema import NetworkValidator
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import ScenarioError
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.model import (
    Heterogeneity,
    HostRule,
    LinkRule,
    Network,
    RandomHostEvent,
    SharedRule,
    TimedHostEvent,
    TimedLinkEvent,
    TraceEvent,
)

DESIGN = """\
deterministic:
  - {hosts: "edge.*", cpu: 25%, memory: 1GiB}
  - {hosts: "edge.*", read: 20MB/s, write: 10MB/s, read_latency: 5ms, write_latency: 200us}
  - {hosts: "edge.*", uplink: 20mbit, downlink: 50mbit}
  - {between: ["edge.*", "fog.*"], shared: 100mbit}
  - {src: "edge.*", dst: "fog.*", jitter: 2ms}
dynamic:
  - {at: 20s, for: 10s, hosts: "fog.trainer.1.2", cpu: 5%}
  - {at: 40s, for: 15s, src: "edge.*", dst: "cloud.*", rate: 1mbit}
  - {at: 60s, for: 5s, hosts: "edge.*", read: 1MB/s, write_latency: 0ms}
  - {trace: lte.csv, src: "edge.*", dst: "fog.*"}
  - {random: {every: 30s, for: 5s, seed: 7}, hosts: "edge.*", cpu: 50%}
"""


def network(text: str) -> Network:
    return validate_model(parse_yaml(text, "network.yaml"), Network)


def heterogeneity(text: str) -> Heterogeneity:
    return validate_model(parse_yaml(text, "heterogeneity.yaml"), Heterogeneity)


def test_a_rule_is_parsed_into_units() -> None:
    rule = network(
        "networks: [{src: edge.*, dst: fog.*, delay: 20ms, rate: 1gbit, loss: 0.5%}]"
    ).rules[0]
    assert (rule.delay_ms, rule.rate_mbps, rule.loss_percent, rule.symmetric) == (
        20.0,
        1000.0,
        0.5,
        False,
    )


@pytest.mark.parametrize("text", ["", "null", "networks:", "networks: null", "networks: []"])
def test_a_file_may_have_no_rules(text: str) -> None:
    assert network(text).rules == ()


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("delay: 10 parsecs", "a delay must be text with a number"),
        ("delay: 10", "a delay must be text"),
        ("delay: -3ms", "a delay must be text with a number"),
        ("rate: 0mbit", "positive number"),
        ("rate: fast", "positive number"),
        ("loss: 101%", "from 0% to 100%"),
        ("loss: 0.05", "a loss must be text"),
        ("symmetric: 1", "must be true or false"),
        ("lost: 5%", "unknown key"),
        ("src: 5", "must be text"),
    ],
)
def test_nonsense_is_refused_where_it_is_written(field: str, expected: str) -> None:
    fields = {
        "src": "src: edge.*",
        "dst": "dst: fog.*",
        "delay": "delay: 1ms",
        "rate": "rate: 1mbit",
    }
    fields[field.partition(":")[0]] = field
    text = "networks:\n  - " + "\n    ".join(fields.values())
    with pytest.raises(ScenarioError) as caught:
        network(text)
    (problem,) = caught.value.problems
    assert expected in str(problem)
    assert problem.line == 2 + list(fields.values()).index(field)
    assert problem.path == "network.yaml"


@pytest.mark.parametrize("key", ["src", "dst", "delay", "rate"])
def test_what_e2clab_requires_is_required(key: str) -> None:
    fields = {"src": "edge.*", "dst": "fog.*", "delay": "1ms", "rate": "1mbit"}
    del fields[key]
    with pytest.raises(ScenarioError, match=f"`{key}` is missing"):
        network(json.dumps({"networks": [fields]}))


# tc takes at most 274 s.
UNITS = st.one_of(
    st.tuples(st.integers(1, 999), st.sampled_from(["ms", "us"])),
    st.tuples(st.integers(1, 274), st.just("s")),
).map(lambda v: f"{v[0]}{v[1]}")
RATES = st.tuples(st.integers(1, 999), st.sampled_from(["kbit", "mbit", "gbit"])).map(
    lambda v: f"{v[0]}{v[1]}"
)
RULES = st.fixed_dictionaries(
    {"src": st.just("edge.*"), "dst": st.just("fog.*"), "delay": UNITS, "rate": RATES},
    optional={"loss": st.integers(0, 100).map(lambda n: f"{n}%"), "symmetric": st.booleans()},
)


@given(st.lists(RULES, max_size=4))
def test_what_we_accept_e2clab_accepts(rules: list[dict[str, object]]) -> None:
    document = {"networks": rules}
    assert len(network(json.dumps(document)).rules) == len(rules)
    assert NetworkValidator.is_valid(document)


def test_the_designs_example_parses() -> None:
    parsed = heterogeneity(DESIGN)
    kinds = [HostRule, HostRule, HostRule, SharedRule, LinkRule]
    assert [type(rule) for rule in parsed.rules] == kinds
    events = [TimedHostEvent, TimedLinkEvent, TimedHostEvent, TraceEvent, RandomHostEvent]
    assert [type(event) for event in parsed.events] == events
    first, last = parsed.rules[0], parsed.events[-1]
    assert isinstance(first, HostRule)
    assert isinstance(last, RandomHostEvent)
    assert (first.cpu, first.memory_bytes) == (0.25, 1 << 30)
    second, event = parsed.rules[1], parsed.events[2]
    assert isinstance(second, HostRule)
    assert isinstance(event, TimedHostEvent)
    assert (second.read_mb_per_s, second.write_mb_per_s) == (20.0, 10.0)
    assert (second.read_latency_ms, second.write_latency_ms) == (5.0, 0.2)
    assert (event.read_mb_per_s, event.write_mb_per_s) == (1.0, None)
    assert (event.read_latency_ms, event.write_latency_ms) == (None, 0.0)
    assert (last.random.every_s, last.random.for_s, last.random.seed, last.cpu) == (
        30.0,
        5.0,
        7,
        0.5,
    )


@pytest.mark.parametrize("text", ["", "null", "{}", "deterministic:\ndynamic:", "dynamic: []"])
def test_no_heterogeneity_is_homogeneous(text: str) -> None:
    parsed = heterogeneity(text)
    assert (parsed.rules, parsed.events) == ((), ())


@pytest.mark.parametrize(
    ("text", "place", "expected"),
    [
        ('deterministic:\n  - {hosts: "edge.*"}', (2, 5), "add cpu, device, memory"),
        ('deterministic:\n  - {hosts: "edge.*", cpu: 0%}', (2, 28), "above 0%"),
        ("deterministic:\n  - {cpu: 5%}", (2, 5), "add `hosts:`"),
        ('deterministic:\n  - {between: ["edge.*"], shared: 1mbit}', (2, 15), ""),
        ('deterministic:\n  - {src: "edge.*", jitter: 2ms}', (2, 5), "`dst` is missing"),
        ('deterministic:\n  - {src: "a", dst: "b", delay: 2ms}', (2, 26), "unknown key"),
        ('deterministic:\n  - {src: "a", dst: "b"}', (2, 5), "add jitter or burst"),
        ('dynamic:\n  - {at: 1s, for: 0s, hosts: "a", cpu: 5%}', (2, 19), "must be greater than 0"),
        ('dynamic:\n  - {at: 1s, hosts: "a", cpu: 5%}', (2, 5), "`for` is missing"),
        (
            'dynamic:\n  - {at: 1s, for: 1s, src: "a", dst: "b"}',
            (2, 5),
            "delay, rate, loss, jitter, profile or down",
        ),
        (
            'dynamic:\n  - {random: {every: 5s, for: 5s, seed: 1}, hosts: "a", cpu: 5%}',
            (2, 22),
            "shorter than",
        ),
        ('dynamic:\n  - {trace: ../x.csv, src: "a", dst: "b"}', (2, 13), "inside the scenario"),
        ('dynamic:\n  - {trace: /x.csv, src: "a", dst: "b"}', (2, 13), "inside the scenario"),
        ("static: []", (1, 1), "the keys are deterministic, dynamic"),
    ],
)
def test_wrong_entries_are_located(text: str, place: tuple[int, int], expected: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        heterogeneity(text)
    problem = caught.value.problems[0]
    assert (problem.line, problem.column) == place
    assert expected in str(problem)


def test_both_models_have_a_json_schema() -> None:
    for model in (Network, Heterogeneity):
        assert json.dumps(model.model_json_schema(by_alias=True))
    assert set(Network.model_json_schema()["$defs"]["NetworkRule"]["required"]) == {
        "src",
        "dst",
        "delay",
        "rate",
    }
