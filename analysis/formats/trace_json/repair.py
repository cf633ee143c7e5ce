"""Repair of JSON that exporters of traces are known to break.

Only faults with one possible meaning are repaired: a backslash that begins no escape is a
backslash, a control character in a string is that character, and a number that is not finite is
null. Every repair is counted, because the user must know of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields

_TOKEN = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
    rb"|(?<![\w.])-?(?:nan(?:\(\w*\))?|inf(?:inity)?|n/a)(?![\w.])"
    rb"|(?<![\w.])-?\d[\d.]*e\+?\d{3,}",
    re.IGNORECASE | re.DOTALL,
)
"""A whole string, a word that some exporters write for a number, or a number that may be too
large for 64 bits."""
_NEEDS_REPAIR = re.compile(rb"[\\\x00-\x1f]")
_IN_STRING = re.compile(
    rb'\\(?:["\\/bfnrt]'
    rb"|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
    rb"|(?P<surrogate>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|(?P<escape>\\)"
    rb"|(?P<control>[\x00-\x1f])",
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass
class RepairCounts:
    """Number of repairs of each kind in one file.

    Attributes:
        escapes: backslashes that begin no valid escape; each now stands for itself.
        controls: control characters in strings, which are now escaped.
        numbers: numbers that are not finite, such as `NaN`, which are now null.
        characters: bytes that are not UTF-8, which are now replacement characters.
        commas: commas after the last event, which are ignored.
    """

    escapes: int = 0
    controls: int = 0
    numbers: int = 0
    characters: int = 0
    commas: int = 0

    def add(self, other: RepairCounts) -> None:
        """Add the counts of another part of the file."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def describe(self) -> Iterator[str]:
        """Yield one phrase for each kind of repair that was made."""
        if self.escapes:
            yield f"invalid escapes, read as plain backslashes: {self.escapes}"
        if self.controls:
            yield f"unescaped control characters in strings: {self.controls}"
        if self.numbers:
            yield f"values that are not finite numbers, read as null: {self.numbers}"
        if self.characters:
            yield f"byte sequences that are not UTF-8, replaced: {self.characters}"
        if self.commas:
            yield f"commas after the last event, ignored: {self.commas}"


def repair_json(text: bytes) -> tuple[bytes, RepairCounts]:
    """Return a text with everything repaired that has one possible meaning, and the counts."""
    counts = RepairCounts()
    try:
        text.decode()
    except UnicodeDecodeError:
        decoded = text.decode(errors="replace")
        before = text.count(_REPLACEMENT.encode())
        counts.characters = decoded.count(_REPLACEMENT) - before
        text = decoded.encode()

    def repair_token(token: re.Match[bytes]) -> bytes:
        found = token[0]
        if found.startswith(b'"'):
            return _repair_string(found, counts) if _NEEDS_REPAIR.search(found) else found
        if found[-1:].isdigit() and math.isfinite(float(found)):
            return found
        counts.numbers += 1
        return b"null"

    return _TOKEN.sub(repair_token, text), counts


def _repair_string(text: bytes, counts: RepairCounts) -> bytes:
    def repair_character(match: re.Match[bytes]) -> bytes:
        if match["control"]:
            counts.controls += 1
            return b"\\u%04x" % match[0][0]
        if match["escape"]:
            counts.escapes += 1
            return b"\\\\"
        if match["surrogate"]:
            counts.characters += 1
            return b"\\ufffd"
        return match[0]

    return _IN_STRING.sub(repair_character, text)
