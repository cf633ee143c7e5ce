"""Text on figures and in sentences about them: host names, numbers and their units."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from laggard.analysis.tables.columns import IntArray
from laggard.analysis.tables.load_run import RankHost

# Last of the Latin letters (Latin Extended-B). The style's font has them; characters of other
# scripts may be missing, and matplotlib would warn.
_LAST_DRAWABLE = 0x24F
ELLIPSIS = "…"


def sanitize_label(text: str, longest: int = 26) -> str:
    """Return text that is suitable for a figure.

    Characters that the font may lack become `?`, and the middle of long names is cut out.
    """
    shown = "".join(c if c.isprintable() and ord(c) <= _LAST_DRAWABLE else "?" for c in text)
    if len(shown) <= longest:
        return shown
    head = longest // 2
    return shown[:head] + ELLIPSIS + shown[len(shown) - (longest - head - 1) :]


def select_ranks(world: int, most: int) -> IntArray:
    """Return the ranks that get a row of their own.

    These are all ranks, or evenly spaced ones that include the first and the last.
    """
    return np.unique(np.linspace(0, world - 1, min(world, most)).round().astype(np.int64))


def select_ranks_including(world: int, most: int, required: Sequence[int]) -> IntArray:
    """Return the ranks that get a row of their own, with required ones among them.

    Of at most `most` ranks, all are shown. Otherwise up to half of `most` are required ranks and
    the others are evenly spaced.
    """
    if world <= most:
        return np.arange(world)
    first = list(dict.fromkeys(required))[: most // 2]
    return np.unique(
        np.concatenate([select_ranks(world, most - len(first)), np.asarray(first, dtype=np.int64)])
    )


def row_height_in(rows: int) -> float:
    """Return the height of one row in inches; many rows are closer together."""
    return 0.29 if rows <= 24 else 0.2


def format_rank_labels(hosts: Sequence[RankHost], longest: int = 26) -> list[str]:
    """Return one label per rank: its host, with the rank if several ranks share the host."""
    names = [host.host if _is_mostly_drawable(host.host) else f"rank {host.rank}" for host in hosts]
    return [
        sanitize_label(name if names.count(name) == 1 else f"{name} #{host.rank}", longest)
        for name, host in zip(names, hosts, strict=True)
    ]


def _is_mostly_drawable(name: str) -> bool:
    return 2 * sum(c.isprintable() and ord(c) <= _LAST_DRAWABLE for c in name) > len(name)


def list_tiers(hosts: Sequence[RankHost]) -> list[str]:
    """Return the tiers, in the order of their first rank."""
    return list(dict.fromkeys(host.tier for host in hosts))
