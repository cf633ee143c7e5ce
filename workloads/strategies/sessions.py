"""Numbers with a session in front: what one life of a rank has counted is told from what its other
lives did.
"""

from __future__ import annotations

_BITS = 32


def in_session(session: int, number: int = 0) -> int:
    """A number of a session: higher than all of sessions before it."""
    return session << _BITS | number


def session_of(number: int) -> int:
    """The session of a number that `in_session` made."""
    return number >> _BITS


def without_session(number: int) -> int:
    """What was numbered."""
    return number & (1 << _BITS) - 1
