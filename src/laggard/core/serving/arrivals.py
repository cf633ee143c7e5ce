"""Times at which requests arrive: drawn from a Poisson process, or recorded in a file."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence

from laggard.core.errors import InputError

MAX_REQUESTS = 1_000_000


def draw_arrivals(rate: float, count: int, seed: Sequence[int]) -> tuple[float, ...]:
    """Draw the times of a Poisson process.

    Args:
        rate: mean number of requests per second.
        count: number of requests.
        seed: seed of the draw.

    Returns:
        Times in seconds, ascending.
    """
    import numpy as np

    gaps = np.random.default_rng(tuple(seed)).exponential(1.0 / rate, count)
    return tuple(np.cumsum(gaps).tolist())


def read_arrivals(content: bytes, path: str) -> tuple[float, ...]:
    """Read the times of a CSV file whose first column has the header `seconds`.

    Raises:
        InputError: a time is no finite number, negative, or earlier than the one before.
    """
    rows = list(csv.reader(io.StringIO(content.decode("utf-8", errors="replace"))))
    if not rows or not rows[0] or rows[0][0].strip() != "seconds":
        raise InputError(f"{path}: the first line must begin with `seconds` — add this header")
    times: list[float] = []
    for line, row in enumerate(rows[1:], 2):
        if not row:
            continue
        times.append(_parse_time(row[0], times[-1] if times else 0.0, f"{path}:{line}"))
    if not 0 < len(times) <= MAX_REQUESTS:
        raise InputError(
            f"{path}: {len(times)} requests — give between 1 and {MAX_REQUESTS:,} of them"
        )
    return tuple(times)


def _parse_time(text: str, before_s: float, place: str) -> float:
    try:
        time_s = float(text)
    except ValueError:
        time_s = math.nan
    if not before_s <= time_s < math.inf:
        raise InputError(
            f"{place}: {text!r} is no time of at least {before_s:g} s — list seconds in ascending"
            " order, from 0 on"
        )
    return time_s
