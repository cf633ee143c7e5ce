"""Typical steps of a run: the median step and its length."""

from __future__ import annotations

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult


def find_median_step(analysis: AnalysisResult) -> int:
    """Return the number of the step whose slowest rank took the median time."""
    slowest = analysis.step_s.max(axis=1)
    return int(analysis.steps[np.argsort(slowest, kind="stable")[(len(slowest) - 1) // 2]])


def compute_median_step_s(analysis: AnalysisResult) -> float:
    """Return the median over steps of the slowest rank's time, in seconds."""
    return float(np.median(analysis.step_s.max(axis=1))) if analysis.step_s.size else 0.0
