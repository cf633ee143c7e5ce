"""Fairness of shares: Jain's index."""

from __future__ import annotations

from collections.abc import Sequence


def compute_jain_index(shares: Sequence[float], count: int | None = None) -> float:
    """Return Jain's index of shares (R. Jain, D. Chiu, W. Hawe, 1984).

    An index of 1 means that all have the same share, and 1/n that only one has any.

    Args:
        shares: shares, at least 0.
        count: number of all that could have one; those that are not in `shares` have none.

    Examples:
        >>> compute_jain_index([1.0, 1.0])
        1.0
        >>> compute_jain_index([1.0], count=4)
        0.25
    """
    squares = sum(share**2 for share in shares)
    return sum(shares) ** 2 / ((count or len(shares)) * squares) if squares > 0 else 0.0
