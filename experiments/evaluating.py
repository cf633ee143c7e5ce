"""`laggard evaluate`: the analysis is held against runs whose stragglers are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

from laggard.analysis.evaluate.account import Tried
from laggard.analysis.evaluate.grid import full_grid
from laggard.analysis.evaluate.trial import try_cases

DEFAULT_CASES = 1200

_T = TypeVar("_T")


@dataclass(frozen=True)
class Extent:
    """How much of the grid is tried: its first `cases` (None: all of it), drawn from `seed`."""

    cases: int | None
    seed: int


def evaluate_generated(extent: Extent, *, quiet: bool) -> tuple[Tried, ...]:
    """Tries generated runs, as many at once as there are cores.

    Args:
        extent: which part of the grid.
        quiet: whether to draw no progress, which is drawn on a terminal only.

    Returns:
        Each run with its verdict, in the grid's order.
    """
    cases = full_grid(extent.seed)[: extent.cases]
    verdicts = _counted(try_cases(cases), len(cases), quiet=quiet)
    return tuple(Tried(case.name, case.axes(), verdict) for case, verdict in zip(cases, verdicts, strict=True))


def _counted(verdicts: Iterator[_T], count: int, *, quiet: bool) -> Iterator[_T]:
    if quiet or not sys.stderr.isatty():
        return verdicts
    from rich.console import Console
    from rich.progress import track

    return iter(track(verdicts, "evaluate", total=count, console=Console(stderr=True), transient=True))
