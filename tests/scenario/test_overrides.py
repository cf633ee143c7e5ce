"""`--set`: what it reaches, what it leaves alone, and whom its mistakes are blamed on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.errors import ScenarioError
from laggard.core.yaml_source import MAX_DEPTH, YamlValue, parse_yaml
from laggard.scenario.overrides import apply_overrides, parse_override

TEXT = "batch_size: 5\nstop: {steps: 3}\nnames: [a, b]\nnothing:\n"


def _applied(*texts: str) -> YamlValue:
    return apply_overrides(
        parse_yaml(TEXT, "workload.yaml"), [parse_override(text) for text in texts]
    ).value


BEFORE = {"batch_size": 5, "stop": {"steps": 3}, "names": ["a", "b"], "nothing": None}


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("workload.batch_size=64", {"batch_size": 64}),
        ("workload.batch_size = 64", {"batch_size": 64}),
        ("workload.stop.time=10s", {"stop": {"steps": 3, "time": "10s"}}),
        ("workload.stop.steps=null", {"stop": {"steps": None}}),
        ("workload.stop={time: 5min}", {"stop": {"time": "5min"}}),
        ("workload.names.0=z", {"names": ["z", "b"]}),
        ("workload.names.2=c", {"names": ["a", "b", "c"]}),
        ("workload.names=[]", {"names": []}),
        ("workload.optimizer.lr=0.1", {"optimizer": {"lr": 0.1}}),
        ("workload.nothing.at.all=1", {"nothing": {"at": {"all": 1}}}),
        ("workload.nothing.0=first", {"nothing": ["first"]}),
        ("workload.1=x", {"1": "x"}),
        ("workload.cpu=50%", {"cpu": "50%"}),
        ("workload.a=b=c", {"a": "b=c"}),
        ("workload.a=", {"a": None}),
    ],
)
def test_sets(text: str, changed: dict[str, YamlValue]) -> None:
    assert _applied(text) == {**BEFORE, **changed}


def test_the_last_one_wins_and_the_source_is_left_alone() -> None:
    source = parse_yaml(TEXT, "workload.yaml")
    assert apply_overrides(
        source, [parse_override("workload.stop.steps=7"), parse_override("workload.stop.steps=8")]
    ).value == {
        **BEFORE,
        "stop": {"steps": 8},
    }
    assert source.value == BEFORE


def test_a_whole_file_can_be_set() -> None:
    assert _applied("workload=[1]") == [1]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("workload.batch_size", "file.key=value"),
        ("workload.=1", "file.key=value"),
        ("=1", "not a file of a scenario"),
        ("", "file.key=value"),
        ("workloads.batch_size=1", "not a file of a scenario"),
        ("workload.x=[", "not YAML"),
        ("workload.x=*a", "aliases"),
        ("workload.x=!!python/none", "tags"),
        ("workload.x=.nan", "finite"),
        ("workload" + ".a" * (MAX_DEPTH + 1) + "=1", "at most"),
        ("workload.batch_size.x=1", "plain value"),
        ("workload.names.3=x", "2 entries"),
        ("workload.names.first=x", "2 entries"),
        ("workload.names.-1=x", "2 entries"),
    ],
)
def test_refuses_under_its_own_name(text: str, rule: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        _applied(text)
    (problem,) = caught.value.problems
    assert problem.path == f"--set {text}"
    assert rule in problem.rule
    assert problem.line == 0


def test_blame_follows_the_value() -> None:
    overridden = apply_overrides(
        parse_yaml(TEXT, "w.yaml"), [parse_override("workload.stop.steps=0")]
    )
    assert (
        str(overridden.locate_problem(("stop", "steps"), "wrong"))
        == "--set workload.stop.steps=0: stop.steps: 0: wrong"
    )
    assert (
        str(overridden.locate_problem(("batch_size",), "wrong"))
        == "w.yaml:1:13: batch_size: 5: wrong"
    )


KEYS = st.lists(
    st.sampled_from(["batch_size", "stop", "names", "0", "1", "9", "new", ""]), max_size=4
).map(".".join)


@given(path=KEYS, value=st.text(max_size=20))
@settings(max_examples=400, deadline=None, derandomize=True)
def test_any_override_is_applied_or_refused(path: str, value: str) -> None:
    text = f"workload.{path}={value}"
    source = parse_yaml(TEXT, "w.yaml")
    try:
        override = parse_override(text)
        after = apply_overrides(source, [override])
    except ScenarioError as error:
        refused = [problem.path for problem in error.problems]
        assert refused == [f"--set {text}"]
    else:
        (key,) = after.origins
        assert after.at(key) == override.value


def test_a_long_override_is_shown_short() -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_override("workload.x=[" + "1," * 10_000)
    assert len(str(caught.value)) < 300
