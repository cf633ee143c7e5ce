"""The shipped JSON Schemas: current, accepting what loads, refusing what editors should
underline."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import jsonschema
import pytest

from laggard.core.yaml_source import YamlValue, parse_yaml
from laggard.scenario.json_schemas import MODELS, SCHEMA_FOLDER, format_schema, get_schema_path
from tests.scenario.scenario_folders import REPOSITORY, SHIPPED, template


@pytest.mark.parametrize("name", MODELS)
def test_schemas_are_current(name: str) -> None:
    assert get_schema_path(name).read_text(encoding="utf-8") == format_schema(name), (
        "run python -m laggard.scenario.json_schemas"
    )


def test_there_is_a_schema_for_every_file_and_no_other() -> None:
    assert {path.name for path in SCHEMA_FOLDER.iterdir()} == {
        get_schema_path(name).name for name in MODELS
    }


def _validator(name: str) -> jsonschema.Draft7Validator:
    # What the schemas use beyond draft 7 (prefixItems, $defs) is either ignored by it or reached
    # through references.
    return jsonschema.Draft7Validator(json.loads(format_schema(name)))


@pytest.mark.parametrize("folder", [*SHIPPED, None])
@pytest.mark.parametrize("name", MODELS)
def test_what_loads_is_accepted(name: str, folder: str | None) -> None:
    text = (
        template()[name] if folder is None else (REPOSITORY / folder / f"{name}.yaml").read_text()
    )
    _validator(name).validate(parse_yaml(text, name).value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("workload", {"model": "mlp", "dataset": "digits", "batchsize": 3}),
        ("workload", {"dataset": "digits"}),
        ("workload", {"model": "mlp", "dataset": "digits", "stop": {"steps": 0}}),
        ("workload", {"model": "mlp", "dataset": "digits", "optimizer": {"name": "sgd", "lr": -1}}),
        ("network", {"networks": [{"src": "a", "dst": "b", "delay": "10 ms!", "rate": "1mbit"}]}),
        ("network", {"networks": [{"src": "a", "dst": "b", "rate": "1mbit"}]}),
        (
            "network",
            {"networks": [{"src": "a", "dst": "b", "delay": "1ms", "rate": "1mbit", "loss": "5"}]},
        ),
        ("heterogeneity", {"deterministic": [{"hosts": "edge.*", "cpu": "25"}]}),
        ("heterogeneity", {"static": []}),
        ("layers_services", {"layers": []}),
        ("workflow", {"hosts": "edge.*"}),
    ],
)
def test_what_editors_should_underline_is_refused(name: str, value: YamlValue) -> None:
    assert not _validator(name).is_valid(value)


def _patterns(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "pattern" and isinstance(value, str):
                yield value
            yield from _patterns(value)
    elif isinstance(node, list):
        for value in node:
            yield from _patterns(value)


@pytest.mark.parametrize("name", MODELS)
def test_patterns_are_ones_that_editors_know(name: str) -> None:
    """ECMA 262 has no \\A, \\Z, possessive quantifiers or inline flags."""
    for pattern in _patterns(json.loads(format_schema(name))):
        re.compile(pattern)
        assert not re.search(r"\\[AZ]|\(\?[aiLmsux]|[*+?}]\+", pattern)
