"""Words for pydantic's own errors, and values that would be accepted instead.

Pydantic's messages are for programmers, so none of them reaches a user. A type of error that this
module does not know gets a general rule.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from laggard.core.edits import YamlValue

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_MAPPING = "keys with values are expected here"
_LIST = "a list is expected here"
_INTEGER = "this must be a whole number"
_NUMBER = "this must be a number"
_SWITCH = "this must be true or false"

_RULES: Mapping[str, str] = {
    "string_type": "this must be text",
    "string_too_short": "this must have at least {min_length} characters",
    "string_too_long": "this must have at most {max_length} characters",
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_parsing_size": _INTEGER,
    "int_from_float": _INTEGER,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "this must be a finite number",
    "bool_type": _SWITCH,
    "bool_parsing": _SWITCH,
    "greater_than": "this must be greater than {gt:g}",
    "greater_than_equal": "this must be at least {ge:g}",
    "less_than": "this must be less than {lt:g}",
    "less_than_equal": "this must be at most {le:g}",
    "literal_error": "this must be {choices}",
    "too_short": "this list must have at least {min_length} entries",
    "too_long": "this list must have at most {max_length} entries",
    "model_type": _MAPPING,
    "model_attributes_type": _MAPPING,
    "dict_type": _MAPPING,
    "tuple_type": _LIST,
    "list_type": _LIST,
    "extra_forbidden": "unknown key",
}
_OTHER = "this value is not allowed here"

_WORDS_OF_SWITCHES: Mapping[str, bool] = {
    "yes": True, "on": True, "y": True, "1": True, "true": True,
    "no": False, "off": False, "n": False, "0": False, "false": False,
}  # fmt: skip


def describe_rule(details: ErrorDetails) -> str:
    """Return the broken rule in words."""
    context = dict(details.get("ctx", {}))
    if "expected" in context:
        context["choices"] = _format_choices(_list_choices(details))
    return _RULES.get(details["type"], _OTHER).format_map(context)


def propose_values(details: ErrorDetails) -> Iterator[YamlValue]:
    """Yield values close to the written one that might satisfy the rule, the closest first."""
    proposals = _PROPOSALS.get(details["type"].partition("_parsing")[0].removesuffix("_type"))
    if proposals is not None:
        yield from proposals(details)


def show_value(value: YamlValue) -> str:
    """Format a value as it is written in YAML."""
    if isinstance(value, str) and re.fullmatch(
        r"[A-Za-z0-9_./%-]*[A-Za-z_%][A-Za-z0-9_./%-]*", value
    ):
        return value if value.lower() not in (*_WORDS_OF_SWITCHES, "null") else json.dumps(value)
    return json.dumps(value, ensure_ascii=False)


def _format_choices(choices: list[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"


def _list_choices(details: ErrorDetails) -> list[str]:
    expected = str(details.get("ctx", {}).get("expected", ""))
    return re.findall(r"'([^']*)'", expected) or [expected]


def _propose_text(details: ErrorDetails) -> Iterator[YamlValue]:
    written = details["input"]
    if isinstance(written, bool):
        yield str(written).lower()
    elif isinstance(written, int | float):
        yield str(written)
    elif isinstance(written, list) and len(written) == 1 and isinstance(written[0], str):
        yield written[0]


def _propose_number(details: ErrorDetails) -> Iterator[YamlValue]:
    try:
        number = float(details["input"])
    except (TypeError, ValueError, OverflowError):
        return
    if abs(number) < 1 << 53:
        yield from (round(number), number)


def _propose_switch(details: ErrorDetails) -> Iterator[YamlValue]:
    known = _WORDS_OF_SWITCHES.get(str(details["input"]).lower())
    yield from (known,) if known is not None else (False, True)


def _propose_bound(details: ErrorDetails) -> Iterator[YamlValue]:
    for name, inside in (("ge", 0.0), ("le", 0.0), ("gt", 1.0), ("lt", -1.0)):
        bound = details.get("ctx", {}).get(name)
        if isinstance(bound, int | float):
            value = bound + inside
            yield int(value) if float(value).is_integer() else value
            yield (bound + 0.01) if name == "gt" else (bound - 0.01) if name == "lt" else value


def _propose_choice(details: ErrorDetails) -> Iterator[YamlValue]:
    choices = _list_choices(details)
    yield from difflib.get_close_matches(str(details["input"]).lower(), choices, n=1)
    yield from choices


def _propose_list(details: ErrorDetails) -> Iterator[YamlValue]:
    if details["input"] in ({}, None):
        yield []
    elif isinstance(details["input"], str | int | float | dict):
        yield [details["input"]]
        yield [str(details["input"])]
    if not details["loc"]:
        yield []


def _propose_shorter_list(details: ErrorDetails) -> Iterator[YamlValue]:
    if isinstance(details["input"], list):
        yield details["input"][: details["ctx"]["max_length"]]


def _propose_shorter_text(details: ErrorDetails) -> Iterator[YamlValue]:
    yield str(details["input"])[: details["ctx"]["max_length"]]


_PROPOSALS: Mapping[str, Callable[[ErrorDetails], Iterator[YamlValue]]] = {
    "string": _propose_text,
    "string_too_long": _propose_shorter_text,
    "int": _propose_number,
    "int_from_float": _propose_number,
    "float": _propose_number,
    "bool": _propose_switch,
    "greater_than": _propose_bound,
    "greater_than_equal": _propose_bound,
    "less_than": _propose_bound,
    "less_than_equal": _propose_bound,
    "literal_error": _propose_choice,
    "tuple": _propose_list,
    "list": _propose_list,
    "too_long": _propose_shorter_list,
}
