"""Failures that follow from the failure of a peer."""

from __future__ import annotations

BLAME_GRACE_S = 0.5
"""How long to listen, after a first death, for the one that caused it: its peers die of the broken
connection."""


def is_peer_failure(last_words: str) -> bool:
    """Whether a process died because a peer had died before."""
    signs = ("connection closed by peer", "connection reset", "broken pipe")
    return any(sign in last_words.lower() for sign in signs)
