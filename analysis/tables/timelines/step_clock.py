"""Step clock: conversion between step numbers and seconds on the run's clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RunData
from laggard.core.run_schema import Finding
from laggard.core.span_schema import Lane, Phase

NS_PER_S = 1e9


@dataclass(frozen=True)
class StepClock:
    """First start and last end of every step over all ranks, [S].

    Times are virtual seconds after the first-step barrier.
    """

    steps: IntArray
    start_s: FloatArray
    end_s: FloatArray

    def window_s(self, first_step: int, last_step: int) -> tuple[float, float]:
        """Return the start of the first and the end of the last step, both inclusive.

        Steps outside the run are clipped to it.
        """
        if not len(self.steps):
            return 0.0, 0.0
        first = min(int(np.searchsorted(self.steps, first_step)), len(self.steps) - 1)
        last = max(int(np.searchsorted(self.steps, last_step, side="right")) - 1, 0)
        return float(self.start_s[first]), float(self.end_s[max(first, last)])

    def seconds(self, step: FloatArray) -> FloatArray:
        """Return the starts of (fractional) step numbers, interpolated."""
        return np.interp(step, self.steps, self.start_s)


def get_finding_window_s(run: RunData, finding: Finding, clock: StepClock) -> tuple[float, float]:
    """Return the start of a finding's first step and the end of its last one, in seconds.

    Args:
        run: run of the finding.
        finding: the finding; in an asynchronous run, its steps are those of its rank.
        clock: clock of the run, used for all other findings.
    """
    if not run.is_lockstep and finding.rank is not None:
        own = run.steps.where(run.steps.rank == finding.rank)
        clock = _build_clock(own.step, own.start_ns, own.end_ns)
    return clock.window_s(finding.first_step, finding.last_step)


def get_step_clock(run: RunData) -> StepClock:
    """Return the step clock of a run, computed once.

    It comes from `steps.parquet` or, if a killed run left none, from the spans.
    """
    return run.memoize(_build_run_clock)


def _build_run_clock(run: RunData) -> StepClock:
    if len(run.steps):
        return _concatenate_clocks(
            [_build_clock(part.step, part.start_ns, part.end_ns) for part in run.steps.parts()]
        )
    clocks = []
    for spans in run.spans.parts():
        work = spans.where((spans.lane == Lane.MAIN) & (spans.phase != Phase.EVALUATE.code))
        clocks.append(_build_clock(work.step, work.start_ns, work.end_ns))
    return _concatenate_clocks(clocks)


def _concatenate_clocks(clocks: Sequence[StepClock]) -> StepClock:
    return StepClock(
        np.concatenate([clock.steps for clock in clocks]),
        np.concatenate([clock.start_s for clock in clocks]),
        np.concatenate([clock.end_s for clock in clocks]),
    )


def _build_clock(step: IntArray, start_ns: IntArray, end_ns: IntArray) -> StepClock:
    if not len(step):
        none: FloatArray = np.array([], dtype=np.float64)
        return StepClock(np.array([], dtype=np.int64), none, none)
    order = np.argsort(step, kind="stable")
    steps, firsts = np.unique(step[order], return_index=True)
    return StepClock(
        steps,
        np.minimum.reduceat(start_ns[order], firsts) / NS_PER_S,
        np.maximum.reduceat(end_ns[order], firsts) / NS_PER_S,
    )
