"""Recognition of failures that follow from the failure of a peer."""

from __future__ import annotations

BLAME_GRACE_S = 0.5
"""Seconds to wait, after the first death, for the process that caused it.

A failed worker's peers die of the broken connection, sometimes before its own death is noticed.
"""


def is_peer_failure(last_words: str) -> bool:
    """Return whether a process died because a peer had died before it."""
    # Parts of error messages about a lost connection, in lower case.
    signs = ("connection closed by peer", "connection reset", "broken pipe")
    return any(sign in last_words.lower() for sign in signs)
