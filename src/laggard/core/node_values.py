"""Types of the values that a node of a continuum reports, with bounds.

Nothing that a node says is believed. Every message of a node is a pydantic model of these types,
so that a number is finite and a text has a limited length and cannot control a terminal.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from laggard.core.errors import escape_unprintable

LARGEST = 1 << 62
"""Largest number in a message: the difference of two such numbers fits into 64 bits."""

_MOST_TEXT = 1 << 17
_MOST_PATH = 1024
_MOST_RANKS = 1 << 20

Number = Annotated[int, Field(strict=True, ge=-LARGEST, le=LARGEST)]
"""Whole number of either sign, such as a time in ns."""

Count = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]
"""Whole number that is never negative."""

Rank = Annotated[int, Field(strict=True, ge=-1, le=_MOST_RANKS)]
"""Number of a rank or the server; -1 for a process that is neither."""

Real = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]
"""Finite number."""


def escape_lines(text: str) -> str:
    """Return a text with every unprintable character except line breaks and tabs escaped."""
    parts = (escape_unprintable(part) for part in text.replace("\t", "    ").split("\n"))
    return "\n".join(parts)


def _keep_end(text: str) -> str:
    return text[-_MOST_TEXT:]


def is_node_path(path: str) -> bool:
    """Return whether a text has the form of `NodePath`."""
    return (
        path.startswith("/")
        and path.isprintable()
        and ".." not in path.split("/")
        and len(path) <= _MOST_PATH
    )


def _require_node_path(path: str) -> str:
    if not is_node_path(path):
        raise ValueError(f"{path[:100]!a} is no path on a node: it must be absolute and printable")
    return path


ShortText = Annotated[str, Field(max_length=500), AfterValidator(escape_unprintable)]
"""Text of one line, such as the name of a processor."""

MessageText = Annotated[str, AfterValidator(_keep_end), AfterValidator(escape_lines)]
"""Text of several lines for the user, such as the end of a log; only the end of a long one."""

NodePath = Annotated[str, Field(max_length=_MOST_PATH), AfterValidator(_require_node_path)]
"""Absolute path on a node."""


def describe_invalid(error: ValidationError) -> str:
    """Describe the first thing that is wrong with a value of a node, on one short line."""
    first = error.errors(include_url=False, include_context=False)[0]
    place = ".".join(str(part)[:50] for part in first["loc"])
    shown = f"{first['input']!a}"[:100]
    return escape_unprintable(f"{place or 'the message'}: {first['msg'][:200]} ({shown})")


Scalar = Number | Real | Annotated[str, Field(max_length=500)] | None


class NodeMessage(BaseModel):
    """Base of the messages of nodes: unknown fields and infinite numbers are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
