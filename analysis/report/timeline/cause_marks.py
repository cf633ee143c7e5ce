"""Marks of reported causes on a picture of ranks over time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.findings.answer import FindingGroup, get_subject, select_reported_groups
from laggard.analysis.report.style.labels import select_ranks_including
from laggard.analysis.tables.columns import IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.step_clock import get_finding_window_s, get_step_clock
from laggard.core.text.text_format import capitalize_sentence

MOST_MARKS = 6
MOST_RANKS = 40
_RANKS_OF_A_MARK = 4


@dataclass(frozen=True)
class CauseMark:
    """One cause on the picture.

    Attributes:
        subject: slow hosts or links, as the beginning of a sentence.
        slowdown: factor of the slowness, as text.
        ranks: ranks whose rows are outlined; empty for links that are slow for the whole run,
            which affect every rank throughout.
        first_s: start, in seconds since the first step.
        last_s: end, in seconds since the first step.
        whole_run: if true, the cause lasted the whole run.
    """

    subject: str
    slowdown: str
    ranks: tuple[int, ...]
    first_s: float
    last_s: float
    whole_run: bool


def build_marks(run: RunData, analysis: AnalysisResult) -> tuple[CauseMark, ...]:
    """Return marks of the most costly visible causes, most costly first."""
    marks = (_build_mark(run, analysis, cause) for cause in select_reported_groups(analysis)[0])
    return tuple(mark for mark in marks if mark.ranks)[:MOST_MARKS]


def group_rows(ranks: tuple[int, ...], shown: IntArray) -> list[tuple[int, int]]:
    """Return the first and last row of each group of adjacent rows that show some of the ranks."""
    rows = np.flatnonzero(np.isin(shown, ranks))
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) > 1)
    firsts, lasts = (
        rows[np.concatenate([[0], breaks + 1])],
        rows[np.concatenate([breaks, [len(rows) - 1]])],
    )
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def _build_mark(run: RunData, analysis: AnalysisResult, cause: FindingGroup) -> CauseMark:
    clock = get_step_clock(run)
    windows = [get_finding_window_s(run, finding, clock) for finding in cause.findings]
    whole_run = cause.first.kind == "deterministic"
    return CauseMark(
        subject=capitalize_sentence(get_subject(cause, analysis).text.split(" (")[0].rstrip(",")),
        slowdown=cause.slowdown_text,
        ranks=_select_ranks(cause, analysis, whole_run=whole_run),
        first_s=min(first for first, _ in windows),
        last_s=max(last for _, last in windows),
        whole_run=whole_run,
    )


def _select_ranks(
    cause: FindingGroup, analysis: AnalysisResult, *, whole_run: bool
) -> tuple[int, ...]:
    """Return the ranks of a cause's marks.

    Temporarily slow links are marked on all ranks, since a collective slows all of them.
    """
    own = {finding.rank for finding in cause.findings if finding.rank is not None}
    if own and cause.first.link is None:
        return tuple(sorted(own))
    return () if whole_run else tuple(range(len(analysis.hosts)))


def select_timeline_ranks(world: int, marks: tuple[CauseMark, ...]) -> IntArray:
    """Return the ranks that have a row, in order.

    Of very many ranks, some of every mark are shown; marks with the fewest ranks take precedence.
    """
    narrowest = sorted(
        (mark for mark in marks if len(mark.ranks) < world), key=lambda mark: len(mark.ranks)
    )
    return select_ranks_including(
        world, MOST_RANKS, [rank for mark in narrowest for rank in mark.ranks[:_RANKS_OF_A_MARK]]
    )
