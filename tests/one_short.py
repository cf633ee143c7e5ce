"""One case of many in `make test`, and all of them in `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest


def one_short(cases: Iterable[object]) -> list[object]:
    """The cases, of which all but the first are long: they go another way through the same code.

    Cases of several values are tuples; a case that is marked already stays as it is.
    """
    first, *others = cases
    return [first, *(_make_long(case) for case in others)]


def _make_long(case: object) -> object:
    if hasattr(case, "marks"):
        return case
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.long)
