"""Evaluations of a run, each once."""

from __future__ import annotations

import numpy as np

from laggard.analysis.tables.columns import StepColumns, concatenate_tables


def select_evaluations(steps: StepColumns) -> StepColumns:
    """Return the records of steps after which a model was evaluated, in order of time.

    Ranks in lockstep all record the same evaluation; one record of it is returned.
    """
    rows = concatenate_tables([part.where(np.isfinite(part.accuracy)) for part in steps.parts()])
    _, first = np.unique(np.column_stack([rows.step, rows.accuracy]), axis=0, return_index=True)
    return rows.where(first[np.argsort(rows.end_ns[first], kind="stable")])
