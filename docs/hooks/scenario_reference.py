"""Reference pages of the scenario files, generated from their JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SCHEMAS = Path(__file__).resolve().parents[2] / "src/laggard/scenario/schemas"
NAMES = ("layers_services", "network", "heterogeneity", "workflow", "workload")
Schema: TypeAlias = Mapping[str, "str | Schema | list[Schema]"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add one page a scenario file."""
    for name in NAMES:
        text = (SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8")
        page = format_page(name, json.loads(text))
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    return files


def format_page(name: str, schema: Schema) -> str:
    """Format the page of one scenario file.

    Args:
        name: the file's name without `.yaml`.
        schema: its JSON Schema, with nested models under `$defs`.
    """
    models = schema.get("$defs", {})
    names = {title: _find_name(title, model) for title, model in models.items()}
    blocks = [f"# {name}.yaml", _describe(schema), *_format_keys(schema, names)]
    for title, model in sorted(models.items(), key=lambda item: names[item[0]].lower()):
        heading = f"## {names[title]} {{#{title.lower()}}}"
        blocks += [heading, _describe(model), *_format_keys(model, names)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _find_name(title: str, model: Schema) -> str:
    """Return the name that selects a model in a file, such as `local_sgd`, or else its title."""
    return str(model.get("properties", {}).get("name", {}).get("const", title))


def _format_keys(schema: Schema, names: Mapping[str, str]) -> Iterator[str]:
    """Format the table of a model's keys, if it has keys."""
    properties = schema.get("properties", {})
    if not properties:
        models = [each for each in _alternatives(schema) if "$ref" in each]
        if models:
            yield f"One of {' or '.join(_format_type(each, names) for each in models)}."
        return
    required = schema.get("required", [])
    rows = ["| key | meaning | value | default |", "|---|---|---|---|"]
    for key, value in properties.items():
        default = "required" if key in required else _format_default(value)
        cells = (f"`{key}`", _describe(value), _format_type(value, names), default)
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    yield "\n".join(rows)


def _format_default(schema: Schema) -> str:
    """Format a default; that of a nested model is the defaults of its keys."""
    default = schema.get("default")
    if default is None or isinstance(default, dict):
        return ""
    return f"`{json.dumps(default, ensure_ascii=False)}`"


def _describe(schema: Schema) -> str:
    """Return the description of a value, or of its only alternative that is not null."""
    if "description" in schema:
        return " ".join(str(schema["description"]).split())
    nested = [_describe(each) for each in _alternatives(schema)]
    return next((text for text in nested if text), "")


def _alternatives(schema: Schema) -> list[Schema]:
    """List the alternatives of a value, without null."""
    found = []
    for each in [*schema.get("anyOf", []), *schema.get("oneOf", [])]:
        if each.get("type") != "null":
            found += _alternatives(each) or [each]
    return found


def _format_type(schema: Schema, names: Mapping[str, str]) -> str:
    """Format the type of a value, with its limits, its examples and links to nested models.

    Args:
        schema: the value's schema.
        names: name of every nested model.
    """
    if "$ref" in schema:
        title = str(schema["$ref"]).rpartition("/")[2]
        return f"[{names[title]}](#{title.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    alternatives = _alternatives(schema)
    if alternatives:
        return _format_alternatives(alternatives, names)
    return _format_simple_type(schema, names)


def _format_alternatives(alternatives: list[Schema], names: Mapping[str, str]) -> str:
    """Format several types; a model that a plain name selects is listed once, with its link."""
    models = [each for each in alternatives if "$ref" in each]
    plain = [each for each in alternatives if "$ref" not in each]
    linked = ", ".join(_format_type(each, names) for each in models)
    if not models or not plain:
        return linked or " or ".join(dict.fromkeys(_format_type(each, names) for each in plain))
    if all("examples" in each for each in plain):
        return f"name, or mapping of {linked}"
    return f"{' or '.join(_format_type(each, names) for each in plain)}, or mapping of {linked}"


def _format_simple_type(schema: Schema, names: Mapping[str, str]) -> str:
    """Format the type of a value that has no alternatives."""
    if schema.get("type") == "array":
        items = schema.get("items", {})
        return f"list of {_format_type(items, names)}" if items else "list"
    if schema.get("type") == "object":
        values = schema.get("additionalProperties")
        known = isinstance(values, Mapping)
        return f"mapping to {_format_type(values, names)}" if known else "mapping"
    if schema.get("examples"):
        examples = (json.dumps(each).strip('"') for each in schema["examples"])
        return "such as " + ", ".join(f"`{example}`" for example in examples)
    kind = schema.get("type", "any value")
    text = " or ".join(kind) if isinstance(kind, list) else str(kind)
    return text + _format_limits(schema)


def _format_limits(schema: Schema) -> str:
    """Format the smallest and largest value of a number."""
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    limits = [f"{sign} {schema[name]:,}" for name, sign in signs.items() if name in schema]
    return f" ({', '.join(limits)})" if limits else ""
