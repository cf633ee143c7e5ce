"""Numbers with a session in front: what one life of a rank has counted is told from what its other
lives did.
"""

from __future__ import annotations

_BITS = 32


def pack_session_number(session: int, number: int = 0) -> int:
    """A number of a session: higher than all of sessions before it."""
    return session << _BITS | number


def unpack_session(number: int) -> int:
    """The session of a number that `pack_session_number` made."""
    return number >> _BITS


def unpack_number(number: int) -> int:
    """Return the number within the session."""
    return number & (1 << _BITS) - 1
