"""E2Clab's files against PyYAML's safe loader, which E2Clab uses: values, places and bounds."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import Problem, ScenarioError
from laggard.core.yaml_source import MAX_DEPTH, YamlValue
from laggard.layers_services.e2clab.yaml_files import (
    MAX_CHARACTERS,
    MAX_VALUES,
    parse_e2clab_yaml,
)
from laggard.layers_services.model import LayersServices
from laggard.scenario.files import dump_e2clab_yaml

if TYPE_CHECKING:
    from tests.users import Runner

steady = settings(max_examples=400, deadline=None, derandomize=True)


def _problem(text: bytes | str) -> Problem:
    with pytest.raises(ScenarioError) as caught:
        parse_e2clab_yaml(text, "file.yaml")
    (problem,) = caught.value.problems
    return problem


def _exactly(value: object) -> object:
    """Return a value with its types and the order of its keys, which `==` would ignore."""
    if isinstance(value, dict):
        return [(_exactly(key), _exactly(inner)) for key, inner in value.items()]
    if isinstance(value, list):
        return [_exactly(inner) for inner in value]
    return type(value), repr(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("", None),
        ("a: yes\nb: No\nc: ON\nd: off\ne: y", {"a": True, "b": False, "c": True, "d": False, "e": "y"}),
        ("a: 010\nb: 0o10\nc: 0x1F\nd: 0b11\ne: 08", {"a": 8, "b": "0o10", "c": 31, "d": 3, "e": "08"}),
        ("a: 10:00:00\nb: 1:30\nc: 1:30.5", {"a": 36000, "b": 90, "c": 90.5}),
        ("a: 2_500\nb: 1_0.5", {"a": 2500, "b": 10.5}),
        ("a: 1e3\nb: 1.0e+3\nc: 1.e3", {"a": "1e3", "b": 1000.0, "c": "1.e3"}),
        ("a: 2026-01-02", {"a": date(2026, 1, 2)}),
        ("a: 2026-01-02 03:04:05Z", {"a": datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)}),
        ("80: a\nyes: b\n~: c\n1.5: d", {80: "a", True: "b", None: "c", 1.5: "d"}),
        ("a: &x [1, {b: no}]\nc: *x", {"a": [1, {"b": False}], "c": [1, {"b": False}]}),
        ("&k a: 1\nb: *k", {"a": 1, "b": "a"}),
        ("a: &x {p: 1, q: 2}\nb: {q: 3, <<: *x}", {"a": {"p": 1, "q": 2}, "b": {"p": 1, "q": 3}}),
        ("a: {<<: [{p: 1}, {p: 2, q: 3}]}", {"a": {"p": 1, "q": 3}}),
        ("a: {<<: {p: 1}, <<: {p: 2}}", {"a": {"p": 2}}),
        ("a: !!str 5\nb: !!int '7'\nc: !!seq [1]\nd: ! x", {"a": "5", "b": 7, "c": [1], "d": "x"}),
        ("{=: 1}", {"=": 1}),
    ],
)  # fmt: skip
def test_reads_what_e2clab_reads(text: str, value: YamlValue) -> None:
    read = parse_e2clab_yaml(text, "f").value
    assert _exactly(read) == _exactly(yaml.safe_load(text))
    assert read == value


@pytest.mark.parametrize(
    ("text", "place", "rule"),
    [
        ("a: 1\nb: 2\na: 3", (3, 1), "already exists"),
        ("a: *none", (1, 4), "no earlier value"),
        ("a: &x 1\nb: &x 2", (2, 4), "already exists"),
        ("a: &x [*x]", (1, 8), "never end"),
        ("a: &x {<<: *x}", (1, 12), "never end"),
        ("a: !!python/object/apply:os.system ['id']", (1, 4), "standard tags"),
        ("a: !vault x", (1, 4), "standard tags"),
        ("a: !!map [1]", (1, 4), "standard tags"),
        ("a: !!set {b}", (1, 4), "sets"),
        ("a: !!binary aGk=", (1, 4), "sets"),
        ("a: !!int x", (1, 4), "YAML 1.1's int"),
        ("a: !!bool x", (1, 4), "YAML 1.1's bool"),
        ("a: !!timestamp x", (1, 4), "YAML 1.1's timestamp"),
        ("a: 2026-13-45", (1, 4), "YAML 1.1's timestamp"),
        ("a: =", (1, 4), "only as a key"),
        ("a: <<", (1, 4), "only as a key"),
        ("a: {<<: 5}", (1, 9), "needs a mapping"),
        ("? [a]\n: b", (1, 3), "plain value"),
        ("--- 1\n--- 2", (2, 1), "one YAML document"),
        ("a: .nan", (1, 4), "finite"),
        ("a: " + "1:" * 200 + "1", (1, 4), "too long"),
        ("a: 9223372036854775808", (1, 4), "63 bits"),
        ('a: "\\uD800"', (1, 4), "surrogate"),
        ("a: [1, 2", (1, 9), "not YAML: expected ',' or ']'"),
        ("a: \x07", (1, 1), "not YAML"),
    ],
)
def test_refuses_at_its_place(text: str, place: tuple[int, int], rule: str) -> None:
    problem = _problem(text)
    assert (problem.line, problem.column) == place
    assert rule in problem.rule
    assert problem.fix


def _chain(count: int, line: str) -> str:
    return "a0: &a0 {x: 1}\n" + "".join(
        line.format(at=i, before=i - 1) for i in range(1, count + 1)
    )


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (_chain(30, "a{at}: &a{at} [*a{before}, *a{before}]\n"), f"more than {MAX_VALUES} values"),
        (_chain(30, "a{at}: &a{at} {{<<: [*a{before}, *a{before}]}}\n"), f"{MAX_VALUES} values"),
        (_chain(2000, "a{at}: &a{at} {{<<: *a{before}}}\n"), f"more than {MAX_DEPTH} mappings"),
        (_chain(2000, "a{at}: &a{at} [*a{before}]\n"), f"nested deeper than {MAX_DEPTH}"),
        ("[" * 100_000, f"nested deeper than {MAX_DEPTH}"),
        ("? " * 20_000, f"nested deeper than {MAX_DEPTH}"),
        ("a" * (MAX_CHARACTERS + 1), "at most"),
    ],
    ids=["list bomb", "merge bomb", "merge chain", "alias chain", "lists", "keys", "long"],
)
def test_expansion_and_depth_are_bounded(text: str, rule: str) -> None:
    assert rule in _problem(text).rule


WORDS = st.sampled_from(
    ["a", "b", "yes", "no", "On", "OFF", "y", "true", "null", "~", "''", "'yes'", '"010"', "1", "-1", "010", "0o7", "08", "0x1F", "0b1", "1_000", "_1",
     "10:00", "10:00:00", "1:60", "1.5", "1e3", "1.0e+3", ".5", "1_0.5", "1:30.5", "2026-01-02", "2026-01-02 03:04:05", "2026-1-2T3:04:05.25+01:00",
     "2026-13-01", "!!str 5", "!!int '5'", "!!float 5", "!!bool no", "! x", "10ms", "5%", "edge.*", "=", "<<", "+1", "0", "-0", "+.5", ".inf", "a b"]
)  # fmt: skip


class _Writer:
    """Writer of flow documents whose aliases and merge keys name earlier values."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.anchors: list[tuple[str, bool]] = []

    def alias(self, *, mapping: bool) -> str:
        names = [name for name, is_mapping in self.anchors if is_mapping or not mapping]
        return f"*{self.draw(st.sampled_from(names))} " if names else "*none "

    def items(self, most: int, depth: int) -> list[str]:
        return [self.value(depth + 1) for _ in range(self.draw(st.integers(0, most)))]

    def mapping(self, depth: int) -> str:
        keys = self.draw(st.lists(st.sampled_from("abcd") | WORDS, max_size=3, unique=True))
        pairs = [f"{key} : {self.value(depth + 1)}" for key in keys if key != "<<"]
        if self.anchors and self.draw(st.booleans()):
            count = self.draw(st.integers(0, 3))
            merged = [self.alias(mapping=True) for _ in range(count)]
            text = merged[0] if count == 1 else f"[{', '.join(merged)}]"
            pairs.insert(self.draw(st.integers(0, len(pairs))), f"<< : {text}")
        return f"{{{', '.join(pairs)}}}"

    def value(self, depth: int) -> str:
        kind = self.draw(st.integers(0, 9 if depth < 4 else 4))
        if kind >= 8 and self.anchors:
            return self.alias(mapping=False)
        name = self.draw(st.sampled_from(["", "", f"n{len(self.anchors)}"]))
        if kind <= 3:
            text = self.draw(WORDS)
        else:
            text = f"[{', '.join(self.items(3, depth))}]" if kind <= 5 else self.mapping(depth)
        if not name or any(name == known for known, _ in self.anchors):
            return text
        self.anchors.append((name, text.startswith("{")))
        return f"&{name} {text}"


@st.composite
def _documents(draw: st.DrawFn) -> str:
    return f"[{', '.join(_Writer(draw).items(4, -1))}]"


MINE = ("already exists", "finite", "63 bits", "never end", "limit", "deeper", "surrogate", "sets,")
"""Parts of the rules by which a document is refused here that E2Clab's loader takes."""

YAMLISH = st.text(alphabet="ab:-[]{}#&*!|>'\"%@`,?<=\n \t~01_.\\uUxe\x00\x85\u2028é", max_size=60)


@steady
@given(st.one_of(_documents(), _documents(), YAMLISH))
def test_a_document_is_read_as_e2clab_reads_it(text: str) -> None:
    try:
        theirs = yaml.safe_load(text)
        refused = False
    except Exception:  # noqa: BLE001 - E2Clab refuses whatever its loader raises
        refused = True
    try:
        source = parse_e2clab_yaml(text, "f")
    except ScenarioError as error:
        (problem,) = error.problems
        assert problem.line >= 1
        assert problem.rule
        assert problem.fix
        assert str(problem).isprintable()
        assert refused or any(rule in problem.rule for rule in MINE), problem
    else:
        assert not refused
        assert _exactly(source.value) == _exactly(theirs)
        again = yaml.safe_load(dump_e2clab_yaml(source.value))
        assert _exactly(again) == _exactly(theirs)
        assert _exactly(parse_e2clab_yaml(dump_e2clab_yaml(source.value), "f").value) == _exactly(
            theirs
        )


def test_every_value_has_its_place() -> None:
    text = "base: &base\n  delay: 10ms\n  on: [1, 2]\nrules:\n  - {<<: *base, rate: 5}\n  - *base\n"
    places = parse_e2clab_yaml(text, "f").positions
    assert places["rules", 0, "rate"] == (5, 23)
    assert places["rules", 0, "delay"] == (2, 10)
    assert places["rules", 0, "delay", "#key"] == (2, 3)
    assert places["rules", 1] == (6, 5)
    assert places["rules", 1, True, 1] == (3, 11)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("walltime: 10:00:00", 'f:1:25: environment.walltime: 36000: a walltime must be hh:mm:ss and at most 23:59:59, as in E2Clab — E2Clab reads 10:00:00 as the number 36000; write "10:00:00", with the quotes'),
        ("job_name: on", 'environment.job_name: true: this must be text — E2Clab reads on as the value true; write "on", with the quotes'),
        ("job_name: 2026-01-02", 'E2Clab reads 2026-01-02 as the date 2026-01-02; write "2026-01-02", with the quotes'),
        ('walltime: "25:00:00"', "a walltime must be hh:mm:ss and at most 23:59:59"),
    ],
)  # fmt: skip
def test_a_surprising_reading_is_refused_with_quotes_as_the_fix(
    settings: str, message: str
) -> None:
    text = f"environment: {{{settings}, g5k: {{}}}}\nlayers: [{{name: a, services: [{{name: b}}]}}]"
    with pytest.raises(ScenarioError) as caught:
        validate_model(parse_e2clab_yaml(text, "f"), LayersServices)
    assert message in str(caught.value)


@pytest.mark.parametrize("word", ["on", "2026-01-02", "010", "null"])
def test_a_name_that_is_no_text_is_refused_with_quotes_as_the_fix(word: str) -> None:
    text = f"environment: {{g5k: {{}}}}\nlayers: [{{name: {word}, services: [{{name: b}}]}}]"
    with pytest.raises(ScenarioError) as caught:
        validate_model(parse_e2clab_yaml(text, "f"), LayersServices)
    assert f'write "{word}", with the quotes' in str(caught.value)


LAYERS = """
environment: {walltime: "01:00:00", g5k: {job_type: [allow_classic_ssh], ipv6: yes}}
monitoring: &dstat {type: dstat, network: shared}
kwollect: {metrics: [all], start: &stage launch, end: *stage}
layers:
  - name: edge
    services:
      - &trainer {name: trainer, quantity: 2_0, repeat: 01, roles: [monitoring], env: &env {80: 8080, on: off, rate: 1_000, at: 10:00}}
      - {<<: *trainer, name: other, quantity: 0b11, image: 2026-01-02 03:04:05, servers: [a, b]}
  - name: cloud
    services: [{name: store, repeat: 2, env: {<<: *env, rate: 1e3}, ports: [08, 0x1F, ~]}]
"""

ORACLE = """
    import json, pathlib
    from e2clab.config import InfrastructureConfig
    from e2clab.utils import load_yaml_file
    from e2clab.managers import Managers
    from laggard.core.corrections.model_problems import validate_model
    from laggard.layers_services.e2clab.managers import list_managers
    from laggard.layers_services.e2clab.services import _build_metadata, _number_services
    from laggard.layers_services.e2clab.yaml_files import parse_e2clab_yaml
    from laggard.layers_services.model import LayersServices

    path = pathlib.Path("layers_services.yaml")
    config = InfrastructureConfig(load_yaml_file(path))
    layers = validate_model(parse_e2clab_yaml(path.read_bytes(), str(path)), LayersServices)
    ours = [_build_metadata(service, layer, *key) for key, layer, service in _number_services(layers)]
    for each, theirs in zip(ours, config.iterate_services(), strict=True):
        print(json.dumps(["service", repr(sorted(each.items())), repr(sorted(theirs.items()))]))
    for name in ("monitoring", "kwollect"):
        print(json.dumps(["manager", repr(list_managers(layers)[name]), repr(config.get_manager_conf(Managers[name.upper()]))]))
"""


@pytest.mark.long
def test_services_and_managers_get_what_e2clab_gives_them(own_runner: Runner) -> None:
    (own_runner.folder / "layers_services.yaml").write_text(LAYERS)
    result = own_runner.run(ORACLE, timeout_s=480)
    pairs = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("[")]
    assert [kind for kind, _, _ in pairs] == ["service"] * 7 + ["manager"] * 2, result.stderr
    for _, ours, theirs in pairs:
        assert ours == theirs
