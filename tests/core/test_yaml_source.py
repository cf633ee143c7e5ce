"""YAML from strangers: what is read, what is refused and where, and that nothing else ever
happens."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import Problem, ScenarioError
from laggard.core.units import DelayWithUnitMs
from laggard.core.yaml_source import MAX_BYTES, MAX_DEPTH, YamlSource, YamlValue, parse_yaml


def _problem(data: bytes | str) -> Problem:
    with pytest.raises(ScenarioError) as caught:
        parse_yaml(data, "file.yaml")
    (problem,) = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("---\n", None),
        ("# only a comment\n", None),
        ("a: 1\nb: [1, 2.5, true, null, ~, text]\n", {"a": 1, "b": [1, 2.5, True, None, None, "text"]}),
        ("a: 1e-3", {"a": 1e-3}),
        ("a: 0x1f", {"a": 31}),
        ("a: 0o17", {"a": 15}),
        ("a: 010", {"a": 10}),
        ("a: -.5", {"a": -0.5}),
        ("a: 01:00:00", {"a": "01:00:00"}),
        ("a: 2026-11-21", {"a": "2026-11-21"}),
        ("a: yes", {"a": "yes"}),
        ("a: '1'", {"a": "1"}),
        ('a: "null"', {"a": "null"}),
        ("a: 10ms", {"a": "10ms"}),
        ("1: x", {"1": "x"}),
        ("\ufeffa: 1", {"a": 1}),
        ("a: |\n  two\n  lines\n", {"a": "two\nlines\n"}),
        ("{}", {}),
        ("[]", []),
    ],
)  # fmt: skip
def test_reads(text: str, value: YamlValue) -> None:
    assert parse_yaml(text, "f").value == value
    assert parse_yaml(text.encode(), "f").value == value


BOMB = "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nd: [*c, *c]\n"


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        (BOMB, (1, 4), "anchors and aliases"),
        ("a: *missing", (1, 4), "anchors and aliases"),
        ("&a b: 1", (1, 1), "anchors and aliases"),
        ("a: &x [*x]", (1, 4), "anchors and aliases"),
        ("a: !!python/object/apply:os.system ['id']", (1, 4), "tags"),
        ("a: !foo {b: 1}", (1, 4), "tags"),
        ("!!map {a: 1}", (1, 1), "tags"),
        ("!!str a: 1", (1, 1), "tags"),
        ("a: !!str 1", (1, 4), "tags"),
        ("a: 1\n<<: {b: 2}", (2, 1), "merge keys"),
        ("a: 1\nb: 2\na: 3", (3, 1), "already exists"),
        ("? [a]\n: b", (1, 3), "plain word"),
        ("a: 1\n---\nb: 2", (2, 1), "one YAML document"),
        ("a: .nan", (1, 4), "finite"),
        ("a: -.inf", (1, 4), "finite"),
        ("a: 1e999", (1, 4), "finite"),
        ("a: " + "9" * 5000, (1, 4), "63 bits"),
        ("a: 0x" + "f" * 5000, (1, 4), "63 bits"),
        ("a: 9223372036854775808", (1, 4), "63 bits"),
        ('a: "\\uD800"', (1, 4), "surrogate"),
        ("a:\n\t- b", (2, 1), "not YAML"),
        ("a: [1, 2", (1, 9), "not YAML: expected ',' or ']'"),
        ("a: \x07", (1, 1), "not YAML"),
        ("%YAML 3.0\n---\na", (1, 1), "not YAML"),
    ],
)
def test_refuses_at_its_place(text: str, place: tuple[int, int], rule: str) -> None:
    problem = _problem(text)
    assert (problem.line, problem.column) == place
    assert rule in problem.rule
    assert problem.fix


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{a: " * 20_000, "- " * 50_000, "? " * 20_000, "[" * (MAX_DEPTH + 2)]
)
def test_depth_is_bounded_before_the_stack_is(text: str) -> None:
    assert _problem(text).rule


def test_size_is_bounded() -> None:
    assert "at most" in _problem("a" * (MAX_BYTES + 1)).rule


def test_not_utf8_names_the_byte() -> None:
    problem = _problem(b"a: 1\nb: caf\xe9\n")
    assert (problem.line, problem.column) == (2, 7)
    assert "UTF-8" in problem.rule


YAMLISH = st.text(alphabet="ab:-[]{}#&*!|>'\"%@`,?<\n \t~01.\\uUxe\x00\x85\u2028é", max_size=60)


@given(st.one_of(YAMLISH, st.text(max_size=40), st.binary(max_size=60)))
@settings(max_examples=1500, deadline=None, derandomize=True)
def test_anything_is_read_or_refused_with_a_place(data: str | bytes) -> None:
    try:
        source = parse_yaml(data, "f")
    except ScenarioError as error:
        for problem in error.problems:
            assert problem.path == "f"
            assert problem.line >= 1
            assert problem.column >= 1
            assert problem.rule
            assert str(problem).isprintable()
    else:
        assert () in source.positions or source.value is None


_PLAIN: st.SearchStrategy[YamlValue] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_PLAIN)
@settings(max_examples=200, deadline=None, derandomize=True)
def test_json_is_read_as_json(value: YamlValue) -> None:
    import json

    text = json.dumps(value)
    if "\\ud8" in text or "\\ud9" in text or "\\uda" in text or "\\udb" in text:
        return  # YAML has no surrogate pairs; files carry the character itself
    assert parse_yaml(text, "f").value == value


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    delay_ms: DelayWithUnitMs = Field(alias="delay")
    kind: Literal["a", "b"] = "a"


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")
    items: tuple[Inner, ...]
    count: int = Field(default=1, ge=1)

    @field_validator("count")
    @classmethod
    def _even(cls, value: int) -> int:
        if value % 2 and value > 1:
            raise ValueError("a count is even — add one")
        return value


def _model_problems(text: str) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        validate_model(parse_yaml(text, "f"), Outer)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("items:\n  - {delay: 10 parsecs}", 'f:2:13: items.0.delay: "10 parsecs": a delay must be a number with the unit us, ms or s — write for example 10ms'),
        ("items:\n  - {dellay: 1ms}", "f:2:6: dellay: unknown key — did you mean `delay`?"),
        ("items:\n  - {delay: 1ms, knd: a}", "f:2:18: knd: unknown key — did you mean `kind`?"),
        ("items:\n  - {delay: 1ms, zzz: a}", "f:2:18: zzz: unknown key — the keys are delay, kind; remove this one"),
        ("items: []\ncount: 3", "f:2:8: count: 3: a count is even — add one"),
        ("items: []\nsize: 3", "f:2:1: size: unknown key — the keys are count, items; remove this one"),
        ("items: []\ncount: 0", "f:2:8: count: 0: this must be at least 1 — write for example 1"),
        ("items: {}", "f:1:8: items: {}: a list is expected here — write []"),
        ("items:\n  - 5", "f:2:5: items.0: 5: keys with values are expected here — remove this entry"),
        ("", "f:1:1: the file: keys with values are expected here — compare it with the same file of a folder that `laggard init` writes"),
        ("- a", 'f:1:1: ["a"]: keys with values are expected here — compare it with the same file of a folder that `laggard init` writes'),
    ],
)  # fmt: skip
def test_model_errors_are_located(text: str, message: str) -> None:
    assert message in _model_problems(text)


def test_all_model_errors_are_told_at_once() -> None:
    assert len(_model_problems("items:\n  - {delay: x}\n  - {delay: y}\ncount: 0\nother: 1")) == 4


def test_an_overridden_value_is_blamed_on_its_origin() -> None:
    source = YamlSource(
        "f", {"a": {"b": 1}}, {(): (1, 1), ("a",): (1, 4)}, {("a", "b"): "--set f.a.b=1"}
    )
    assert str(source.locate_problem(("a", "b"), "too small")) == "--set f.a.b=1: a.b: 1: too small"
    assert str(source.locate_problem(("a",), "wrong")) == 'f:1:4: a: {"b": 1}: wrong'
    assert source.at(("a", "b")) == 1
    assert source.at(("a", "c", 3)) is None
