"""The linear matcher against Python's own, on expressions that are harmless to both."""

from __future__ import annotations

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.linear_regex import MAX_STATES, UnsupportedExpressionError, compile_regex

_ATOMS = st.sampled_from(
    ["a", "b", ".", "\\.", "[ab]", "[^a]", "[]a]", "[a-c1]", "\\d", "\\w", "\\s", "{", "}", "]", "-", "a{x}",
     "{}", "\\x61", "\\u0062", "^", "$", "(?:)", "()", "\n"]
)  # fmt: skip
_REPEATS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "+?", "??", "{2}", "{1,}", "{,2}", "{0,1}", "{2}?", "{,}"])  # fmt: skip


def _extend(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(st.sampled_from(["(", "(?:"]), inner).map(lambda parts: f"{''.join(parts)})")
    repeated = st.tuples(st.one_of(_ATOMS, group), _REPEATS).map("".join)
    return st.one_of(
        st.lists(repeated, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
    )


_EXPRESSIONS = st.recursive(_ATOMS, _extend, max_leaves=6)


@given(_EXPRESSIONS, st.text(alphabet="ab.1]{}x-\n", max_size=8))
@settings(max_examples=1500, deadline=None)
def test_python_finds_the_same_matches(expression: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            expected = re.compile(expression)
        except (re.error, FutureWarning):
            return
    assert compile_regex(expression).matches_beginning(text) == bool(expected.match(text))


@given(st.text(alphabet="ab.*+?()[]|{}\\\\^$1,-:<!=P", max_size=30))
@settings(max_examples=1500, deadline=None)
def test_any_text_is_compiled_or_refused(expression: str) -> None:
    """And refused by both, or by this one for what it does not support."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = compile_regex(expression)
        except (re.error, OverflowError, UnsupportedExpressionError):
            return
        assert compiled.matches_beginning("") == bool(re.match(expression, ""))


@pytest.mark.parametrize(
    "expression", ["a{257}", "(a{16}){16}", "(){99999999}", "(((){99}){99}){99}"]
)
def test_states_are_bounded(expression: str) -> None:
    with pytest.raises(UnsupportedExpressionError, match=f"more than {MAX_STATES} states"):
        compile_regex(expression)
