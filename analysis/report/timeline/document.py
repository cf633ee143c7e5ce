"""Data of the zoomable timeline: the whole run in cells, and some windows in finer ones.

Its size in bytes is bounded, whatever the size of the run.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.report.style import palette
from laggard.analysis.report.style.labels import format_rank_labels
from laggard.analysis.report.timeline.activity import RankActivity
from laggard.analysis.report.timeline.activity_cells import get_activity
from laggard.analysis.report.timeline.cause_marks import (
    CauseMark,
    build_marks,
    group_rows,
    select_timeline_ranks,
)
from laggard.analysis.report.timeline.close_ups import CloseUp, plan_close_ups
from laggard.analysis.report.timeline.typical_steps import compute_median_step_s
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData

CELL_BYTES = 300_000
"""Bytes of the cells of all levels in the page, for any run length and number of ranks."""

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
"""Digits of shares: each share is one character, whose position here is the share times 63."""

# Part of the cells that the whole run gets, smallest number of cells of a window, and largest
# width of a window's cells relative to those of the whole run.
WHOLE_RUN_PART = 0.5
LEAST_CELLS = 48
FINER = 0.5


@dataclass(frozen=True)
class ZoomLevel:
    """Window in equal cells, in seconds since the first step."""

    first_s: float
    last_s: float
    cells: int


@dataclass(frozen=True)
class TimelinePart:
    """Timeline as the page needs it.

    Attributes:
        document: data that the script draws, as JSON.
        kinds: kinds of time in the legend.
        background: kind that is drawn as a thin line below the others; None if it does not occur.
        whole_run: if true, something is outlined for the whole run.
        temporary: if true, something is outlined temporarily.
        close_ups: windows that have a button.
        omitted_ranks: sentence about ranks without a row; empty if all have one.
    """

    document: str
    kinds: tuple[palette.Paint, ...]
    background: palette.Paint | None
    whole_run: bool
    temporary: bool
    close_ups: tuple[CloseUp, ...]
    omitted_ranks: str


def build_timeline_part(run: RunData, analysis: AnalysisResult) -> TimelinePart | None:
    """Build the timeline of a run.

    Args:
        run: run with spans.
        analysis: findings to mark and to show in close-ups.

    Returns:
        The timeline, or None if no rank recorded any activity.
    """
    activity = get_activity(run)
    if not activity.kinds:
        return None
    marks = build_marks(run, analysis)
    world = len(analysis.hosts)
    shown = select_timeline_ranks(world, marks)
    end_s = activity.end_ns / 1e9
    closer = plan_close_ups(run, analysis)
    levels = plan_levels(end_s, closer, CELL_BYTES // (len(shown) * activity.series_count))
    labels = format_rank_labels(analysis.hosts)
    document = {
        "end": end_s,
        "step": compute_median_step_s(analysis),
        "rows": [labels[rank] for rank in shown],
        "kinds": [
            {"label": p.label, "color": p.color, "hatch": p.hatch[:1]} for p in activity.kinds
        ],
        "background": {
            "label": palette.BACKGROUND_TRANSFER.label,
            "color": palette.BACKGROUND_TRANSFER.color,
        }
        if activity.has_background
        else None,
        "levels": [_encode_level(activity, shown, level) for level in levels],
        "marks": [_encode_mark(mark, shown) for mark in marks],
    }
    return TimelinePart(
        document=json.dumps(document, separators=(",", ":")),
        kinds=(*activity.kinds, palette.BACKGROUND_TRANSFER)
        if activity.has_background
        else activity.kinds,
        background=palette.BACKGROUND_TRANSFER if activity.has_background else None,
        whole_run=any(mark.whole_run for mark in marks),
        temporary=any(not mark.whole_run for mark in marks),
        close_ups=closer,
        omitted_ranks="" if len(shown) == world else f"{len(shown)} of {world} ranks are shown.",
    )


def plan_levels(end_s: float, close_ups: Sequence[CloseUp], columns: int) -> tuple[ZoomLevel, ...]:
    """Distribute the cells over the whole run and the windows.

    Half of them go to the whole run, the rest equally to the windows. A window is kept if its
    cells are then at most half as wide.

    Args:
        end_s: length of the run.
        close_ups: windows, most informative first.
        columns: number of cells that a rank may have, over all levels.

    Returns:
        The levels, the whole run first; together they have `columns` cells. If no window is kept,
        the whole run has all cells.
    """
    rest = int(columns * (1 - WHOLE_RUN_PART))
    kept = list(close_ups[: rest // LEAST_CELLS])
    while kept:
        each = rest // len(kept)
        widest = FINER * end_s / (columns - rest) * each
        # Each dropped window leaves more cells for the others, so the check is repeated.
        finer = [window for window in kept if window.last_s - window.first_s <= widest]
        if len(finer) == len(kept):
            whole = ZoomLevel(0.0, end_s, columns - each * len(kept))
            return (whole, *(ZoomLevel(window.first_s, window.last_s, each) for window in kept))
        kept = finer
    return (ZoomLevel(0.0, end_s, max(columns, 1)),)


def encode_shares(shares: FloatArray, kinds: int) -> str:
    """Encode shares as text by cell, rank and series, one character each.

    Args:
        shares: shares of time, [cells, R, series].
        kinds: number of series that add up to at most 1; their digits add up to at most 63.
    """
    top = len(DIGITS) - 1
    # Rounding the cumulative sums, not the shares, bounds the sum of the digits.
    stacked = np.round(top * np.clip(np.cumsum(shares[:, :, :kinds], axis=2), 0.0, 1.0))
    digits = np.diff(stacked, axis=2, prepend=0.0)
    background = np.round(top * np.clip(shares[:, :, kinds:], 0.0, 1.0))
    values = np.concatenate([digits, background], axis=2).astype(np.int64)
    alphabet = np.frombuffer(DIGITS.encode(), dtype=np.uint8)
    return alphabet[values].tobytes().decode()


def _encode_level(activity: RankActivity, shown: IntArray, level: ZoomLevel) -> dict[str, object]:
    shares = activity.compute_shares(shown, level.first_s * 1e9, level.last_s * 1e9, level.cells)
    cells = encode_shares(shares, len(activity.kinds))
    return {"from": level.first_s, "to": level.last_s, "n": level.cells, "cells": cells}


def _encode_mark(mark: CauseMark, shown: IntArray) -> dict[str, object]:
    lasts = "the whole run" if mark.whole_run else "temporarily"
    return {
        "text": f"{mark.subject}: {mark.slowdown} slower, {lasts}",
        "from": mark.first_s,
        "to": mark.last_s,
        "whole_run": mark.whole_run,
        "rows": group_rows(mark.ranks, shown),
    }
