"""Where on a picture of ranks over time the causes are that the answer tells of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.analysis.answer import Cause, subject_of, told_causes
from laggard.analysis.columns import IntArray
from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run
from laggard.analysis.step_clock import finding_window_s, step_clock
from laggard.analysis.wording import sentence

MOST_MARKS = 6


@dataclass(frozen=True)
class Mark:
    """One cause on the picture.

    Attributes:
        subject: who or what was slow, as a sentence begins.
        slowdown: by how much, in words.
        ranks: whose rows it is outlined on; none for links that are slow for the whole run, which
            every rank feels all the time.
        first_s: when it began, in seconds since the first step.
        last_s: when it ended.
        lasting: whether it lasted the whole run.
    """

    subject: str
    slowdown: str
    ranks: tuple[int, ...]
    first_s: float
    last_s: float
    lasting: bool


def marks_of(run: Run, analysis: Analysis) -> tuple[Mark, ...]:
    """Marks of the dearest causes that can be seen, dearest first."""
    marks = (_mark(run, analysis, cause) for cause in told_causes(analysis)[0])
    return tuple(mark for mark in marks if mark.ranks)[:MOST_MARKS]


def row_runs(ranks: tuple[int, ...], shown: IntArray) -> list[tuple[int, int]]:
    """Neighbouring rows of a picture that show some of the ranks: first and last row of each run of
    them.
    """
    rows = np.flatnonzero(np.isin(shown, ranks))
    if not len(rows):
        return []
    breaks = np.flatnonzero(np.diff(rows) > 1)
    firsts, lasts = (
        rows[np.concatenate([[0], breaks + 1])],
        rows[np.concatenate([breaks, [len(rows) - 1]])],
    )
    return [(int(first), int(last)) for first, last in zip(firsts, lasts, strict=True)]


def _mark(run: Run, analysis: Analysis, cause: Cause) -> Mark:
    clock = step_clock(run)
    windows = [finding_window_s(run, finding, clock) for finding in cause.findings]
    lasting = cause.first.kind == "deterministic"
    return Mark(
        subject=sentence(subject_of(cause, analysis).text.split(" (")[0].rstrip(",")),
        slowdown=cause.slowdown_text,
        ranks=_ranks(cause, analysis, lasting=lasting),
        first_s=min(first for first, _ in windows),
        last_s=max(last for _, last in windows),
        lasting=lasting,
    )


def _ranks(cause: Cause, analysis: Analysis, *, lasting: bool) -> tuple[int, ...]:
    """The ranks themselves; where links were slow for a while, all, since a collective slows
    everyone alike.
    """
    own = {finding.rank for finding in cause.findings if finding.rank is not None}
    if own and cause.first.link is None:
        return tuple(sorted(own))
    return () if lasting else tuple(range(len(analysis.hosts)))
