"""The correction of a name that is not one of the known names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from laggard.core.edits import Correction, KeyPath, write_value

_MOST_NAMES = 20


def find_near_name(name: object, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the known name that is most similar to `name`, ignoring case; None if none is."""
    by_lower = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def suggest_name(
    name: object, known: Iterable[str], key: KeyPath = (), also: str = ""
) -> Correction:
    """Return the correction of an unknown name at `key`.

    Args:
        name: the written name.
        known: all names that are accepted; the first is suggested if none is similar.
        key: key path of the name.
        also: another form of name that is accepted; empty for none.
    """
    names = list(known)
    near = find_near_name(name, names)
    if near is not None:
        more = f" ({also} is accepted too)" if also else ""
        return write_value(key, near, f"did you mean `{near}`?{more}")
    if not names:
        return Correction("remove it")
    more = ", ..." if len(names) > _MOST_NAMES else f" or {also}" if also else ""
    return write_value(key, names[0], f"use {', '.join(names[:_MOST_NAMES])}{more}")
