"""Typical steps of a run: the median step and its length."""

from __future__ import annotations

import numpy as np

from laggard.analysis.findings.analysis_result import AnalysisResult


def find_median_step(analysis: AnalysisResult) -> int:
    """Number of the step whose slowest rank took the median time."""
    slowest = analysis.step_s.max(axis=1)
    return int(analysis.steps[np.argsort(slowest, kind="stable")[(len(slowest) - 1) // 2]])


def compute_median_step_s(analysis: AnalysisResult) -> float:
    """Median of the steps' times, of every step that of its slowest rank."""
    return float(np.median(analysis.step_s.max(axis=1))) if analysis.step_s.size else 0.0
