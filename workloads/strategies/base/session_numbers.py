"""Numbers that carry the session of a rank in their upper bits.

A rank that is lost and joins again begins a new session. Packed numbers keep what its sessions
count apart.
"""

from __future__ import annotations

_BITS = 32


def pack_session_number(session: int, number: int = 0) -> int:
    """Pack a session and a number; the result exceeds all numbers of earlier sessions."""
    return session << _BITS | number


def unpack_session(number: int) -> int:
    """Return the session of a number that `pack_session_number` made."""
    return number >> _BITS


def unpack_number(number: int) -> int:
    """Return the number within the session."""
    return number & (1 << _BITS) - 1
