"""The timeline that one can zoom into: the whole run in cells, some windows in finer ones, within a
fixed number of bytes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import FloatArray, IntArray
from laggard.analysis.figures import palette
from laggard.analysis.figures.activity import Activity
from laggard.analysis.figures.closeups import CloseUp, close_ups
from laggard.analysis.figures.labels import rank_labels
from laggard.analysis.figures.long_activity import activity_of
from laggard.analysis.figures.marks import Mark, marks_of, row_runs
from laggard.analysis.figures.timeline import timeline_ranks, usual_step_s
from laggard.analysis.findings import Analysis
from laggard.analysis.load import Run

CELL_BYTES = 300_000
"""What the cells of all levels take in the page, whatever the run's length and number of ranks."""

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
"""A share is one character: its place here, of 63."""

WHOLE_RUN_PART = 0.5
LEAST_CELLS = 48
FINER = 0.5


@dataclass(frozen=True)
class Level:
    """A window in equal cells, seconds since the first step."""

    first_s: float
    last_s: float
    cells: int


@dataclass(frozen=True)
class TimelinePart:
    """What the page needs of it.

    Attributes:
        document: what the script draws, as JSON.
        kinds: the legend: what has a colour.
        beside: that of them which is drawn as a thin line below the others; None where nothing is.
        lasting: whether anything is outlined for the whole run.
        passing: whether anything is for a while.
        closer: windows to go to.
        rest: which ranks have no row; empty where all have one.
    """

    document: str
    kinds: tuple[palette.Paint, ...]
    beside: palette.Paint | None
    lasting: bool
    passing: bool
    closer: tuple[CloseUp, ...]
    rest: str


def timeline_part(run: Run, analysis: Analysis) -> TimelinePart | None:
    """The timeline of a run.

    Args:
        run: its spans.
        analysis: what is marked, and looked at more closely.

    Returns:
        It; None where no rank recorded what it did.
    """
    activity = activity_of(run)
    if not activity.kinds:
        return None
    marks = marks_of(run, analysis)
    world = len(analysis.hosts)
    shown = timeline_ranks(world, marks)
    end_s = activity.end_ns / 1e9
    closer = close_ups(run, analysis)
    levels = plan_levels(end_s, closer, CELL_BYTES // (len(shown) * activity.series))
    labels = rank_labels(analysis.hosts)
    document = {
        "end": end_s,
        "step": usual_step_s(analysis),
        "rows": [labels[rank] for rank in shown],
        "kinds": [
            {"label": p.label, "colour": p.colour, "hatch": p.hatch[:1]} for p in activity.kinds
        ],
        "beside": {"label": palette.BESIDE.label, "colour": palette.BESIDE.colour}
        if activity.beside
        else None,
        "levels": [_level(activity, shown, level) for level in levels],
        "marks": [_mark(mark, shown) for mark in marks],
    }
    return TimelinePart(
        document=json.dumps(document, separators=(",", ":")),
        kinds=(*activity.kinds, palette.BESIDE) if activity.beside else activity.kinds,
        beside=palette.BESIDE if activity.beside else None,
        lasting=any(mark.lasting for mark in marks),
        passing=any(not mark.lasting for mark in marks),
        closer=closer,
        rest="" if len(shown) == world else f"{len(shown)} of {world} ranks are shown.",
    )


def plan_levels(end_s: float, closer: Sequence[CloseUp], columns: int) -> tuple[Level, ...]:
    """Shares the columns out: half to the whole run, the rest equally to windows in which cells
    then are at most half as wide.

    Args:
        end_s: length of the run.
        closer: windows, most telling first.
        columns: how many cells a rank may have, over all levels.

    Returns:
        The whole run first; together they have `columns` cells. Where no window gains, the whole
        run has them all.
    """
    rest = int(columns * (1 - WHOLE_RUN_PART))
    kept = list(closer[: rest // LEAST_CELLS])
    while kept:
        each = rest // len(kept)
        widest = FINER * end_s / (columns - rest) * each
        finer = [window for window in kept if window.last_s - window.first_s <= widest]
        if len(finer) == len(kept):
            whole = Level(0.0, end_s, columns - each * len(kept))
            return (whole, *(Level(window.first_s, window.last_s, each) for window in kept))
        kept = finer
    return (Level(0.0, end_s, max(columns, 1)),)


def encode(shares: FloatArray, kinds: int) -> str:
    """Shares as text: by cell, rank and series, one character each.

    Args:
        shares: [cells, R, series].
        kinds: how many of the series add up to at most 1; their characters add up to at most 63.
    """
    top = len(DIGITS) - 1
    stacked = np.round(top * np.clip(np.cumsum(shares[:, :, :kinds], axis=2), 0.0, 1.0))
    digits = np.diff(stacked, axis=2, prepend=0.0)
    beside = np.round(top * np.clip(shares[:, :, kinds:], 0.0, 1.0))
    values = np.concatenate([digits, beside], axis=2).astype(np.int64)
    alphabet = np.frombuffer(DIGITS.encode(), dtype=np.uint8)
    return alphabet[values].tobytes().decode()


def _level(activity: Activity, shown: IntArray, level: Level) -> dict[str, object]:
    shares = activity.shares(shown, level.first_s * 1e9, level.last_s * 1e9, level.cells)
    cells = encode(shares, len(activity.kinds))
    return {"from": level.first_s, "to": level.last_s, "n": level.cells, "cells": cells}


def _mark(mark: Mark, shown: IntArray) -> dict[str, object]:
    lasts = "the whole run" if mark.lasting else "for a while"
    return {
        "text": f"{mark.subject}: {mark.slowdown} slower, {lasts}",
        "from": mark.first_s,
        "to": mark.last_s,
        "lasting": mark.lasting,
        "rows": row_runs(mark.ranks, shown),
    }
