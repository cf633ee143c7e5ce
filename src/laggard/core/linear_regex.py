r"""Regular expressions in linear time, for expressions of strangers.

Python's `re` backtracks, so `(a|a)(a|a)...` takes a time exponential in its length. This matcher
follows all alternatives at once (K. Thompson, Regular expression search algorithm, CACM 1968): the
time is at most proportional to the length of the text times the number of states. It supports
Python's syntax without look-around, references to groups, possessive repetition, flags and `\b`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial

MAX_STATES = 256
"""Largest number of states of an expression; a repetition such as `a{20}` needs one per copy."""

_MAX_DEPTH = 30
# One character, or a class of characters, as Python writes them.
_CHARACTER = re.compile(
    r"\[\^?\]?(?:\\.|[^\]\\])*\]|\\x[0-9a-f]{2}|\\u[0-9a-f]{4}|\\[^0-9A-Zbux]|\\[DSW]"
    r"|[^\\\[()|*+?^$]",
    re.DOTALL | re.IGNORECASE,
)
_REPEAT = re.compile(r"[*+?]|\{(?!\})([0-9]*)(,?)([0-9]*)\}")
_GROUP = re.compile(r"\((?:\?(?::|P<\w+>)|(?!\?))")

_Builder = Callable[[int], int]
"""Function that adds the states of a part before a given state, and returns the first of them."""


class UnsupportedExpressionError(ValueError):
    """Expression that is valid, but that this matcher does not support."""


@dataclass(frozen=True)
class _State:
    """State of the matcher.

    Attributes:
        following: states that follow; none in the final state.
        reads: character or class that leads to them; None if they follow at once.
        anchor: `^` or `$` if they follow only at the beginning or the end of the text.
    """

    following: tuple[int, ...] = ()
    reads: re.Pattern[str] | None = None
    anchor: str = ""


@dataclass(frozen=True)
class LinearRegex:
    """Expression that is ready to match; build it with `compile_regex`."""

    _states: Sequence[_State]
    _first: int
    _readers: dict[str, frozenset[int]] = field(default_factory=dict)

    def matches_beginning(self, text: str) -> bool:
        """Return whether a beginning of the text matches, as `re.match` does."""
        current = self._follow([self._first], text, 0)
        for at, character in enumerate(text, start=1):
            if 0 in current or not current:
                break
            read = current & self._find_readers(character)
            current = self._follow((self._states[s].following[0] for s in read), text, at)
        return 0 in current

    def _follow(self, states: Iterable[int], text: str, at: int) -> set[int]:
        """Return the states and all that follow without reading a character."""
        found: set[int] = set()
        pending = list(states)
        while pending:
            number = pending.pop()
            if number in found:
                continue
            found.add(number)
            state = self._states[number]
            if state.reads is None and _is_at_anchor(state.anchor, text, at):
                pending += state.following
        return found

    def _find_readers(self, character: str) -> frozenset[int]:
        if character not in self._readers:
            self._readers[character] = frozenset(
                number
                for number, state in enumerate(self._states)
                if state.reads is not None and state.reads.match(character)
            )
        return self._readers[character]


def _is_at_anchor(anchor: str, text: str, at: int) -> bool:
    if anchor == "^":
        return at == 0
    # As in Python, `$` also matches before a line break that ends the text.
    return not anchor or at == len(text) or text[at:] == "\n"


@lru_cache(maxsize=1024)
def compile_regex(expression: str) -> LinearRegex:
    """Compile an expression.

    Raises:
        UnsupportedExpressionError: it is valid, but not supported.
        re.error, OverflowError, RecursionError: it is not a regular expression.
    """
    re.compile(expression)
    parser = _Parser(expression)
    first = parser.parse_alternatives(0)(0)
    # A valid expression is read to its end; what remains is a form that the parser does not know.
    parser.require_end()
    return LinearRegex(tuple(parser.states), first)


class _Parser:
    """Parser of an expression, whose builders add states; state 0 is the final one."""

    def __init__(self, expression: str) -> None:
        self.states = [_State()]
        self._text, self._at = expression, 0

    def parse_alternatives(self, depth: int) -> _Builder:
        if depth > _MAX_DEPTH:
            raise UnsupportedExpressionError(f"has more than {_MAX_DEPTH} groups inside each other")
        options = [self._parse_sequence(depth)]
        while self._take("|"):
            options.append(self._parse_sequence(depth))
        if len(options) == 1:
            return options[0]
        return lambda then: self._add(_State(tuple(option(then) for option in options)))

    def require_end(self) -> None:
        if self._at < len(self._text):
            raise UnsupportedExpressionError(
                f"contains {self._text[self._at : self._at + 3]}, which cannot be matched in linear"
                " time"
            )

    def _parse_sequence(self, depth: int) -> _Builder:
        parts: list[_Builder] = []
        while (part := self._parse_part(depth)) is not None:
            parts.append(self._parse_repeats(part))

        def build(then: int) -> int:
            for part in reversed(parts):
                then = part(then)
            return then

        return build

    def _parse_part(self, depth: int) -> _Builder | None:
        """Parse a group, an anchor or a character; return None before anything else."""
        group = _GROUP.match(self._text, self._at)
        if group is not None:
            self._at = group.end()
            inner = self.parse_alternatives(depth + 1)
            if not self._take(")"):
                self.require_end()
            return inner
        for anchor in "^$":
            if self._take(anchor):
                return partial(self._add_anchor, anchor)
        found = _CHARACTER.match(self._text, self._at)
        if found is None:
            return None
        self._at = found.end()
        reads = re.compile(found[0] if found[0][0] in "[\\." else re.escape(found[0]))
        return lambda then: self._add(_State((then,), reads))

    def _parse_repeats(self, part: _Builder) -> _Builder:
        found = _REPEAT.match(self._text, self._at)
        if found is None:
            return part
        self._at = found.end()
        # Whether the shortest or the longest repetition is tried first does not change a match.
        self._take("?")
        if found[0] in "*+?":
            return self._repeat(part, int(found[0] == "+"), 1 if found[0] == "?" else None)
        least = int(found[1] or 0)
        most = int(found[3]) if found[3] else None if found[2] else least
        return self._repeat(part, least, most)

    def _repeat(self, part: _Builder, least: int, most: int | None) -> _Builder:
        def build(then: int) -> int:
            if most is None:
                loop = self._add(_State())
                self.states[loop] = _State((part(loop), then))
                then = loop
            else:
                end = then
                for _ in range(most - least):
                    then = self._add(_State((part(then), end)))
            for _ in range(least):
                # A state of its own, so that copies of an empty part are counted, too.
                then = self._add(_State((part(then),)))
            return then

        return build

    def _add_anchor(self, anchor: str, then: int) -> int:
        return self._add(_State((then,), anchor=anchor))

    def _add(self, state: _State) -> int:
        if len(self.states) >= MAX_STATES:
            raise UnsupportedExpressionError(
                f"needs more than {MAX_STATES} states; shorten it, or repeat less often"
            )
        self.states.append(state)
        return len(self.states) - 1

    def _take(self, character: str) -> bool:
        is_next = self._text.startswith(character, self._at)
        self._at += is_next
        return is_next
