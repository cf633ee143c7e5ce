"""Evaluation of the analysis on runs with known stragglers (`laggard evaluate`)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import numpy as np
from pydantic import TypeAdapter

from laggard.analysis.detection.online.recorded_run import replay_alarms
from laggard.analysis.evaluate.alarm_judgment import judge_alarms
from laggard.analysis.evaluate.case_evaluation import evaluate_case, evaluate_cases
from laggard.analysis.evaluate.case_grid import build_full_grid
from laggard.analysis.evaluate.evaluation_report import EvaluatedCase
from laggard.analysis.evaluate.finding_judgment import CaseJudgment, judge_findings
from laggard.analysis.evaluate.trace_grid import build_trace_grid, evaluate_trace
from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.core.run_schema import Finding
from laggard.core.text.terminal_output import print_text
from laggard.evaluate.ground_truth import read_injected_events
from laggard.evaluate.injected_cases import SCENARIO, EmulatedCase, draw_cases

log = logging.getLogger(__name__)

DEFAULT_CASES = 1500
DEFAULT_EMULATED_CASES = 6

GridName = Literal["runs", "traces"]
"""Grid of Laggard's own runs, and grid of runs as other tools record them."""

_T = TypeVar("_T")


class _GridCase(Protocol):
    @property
    def name(self) -> str: ...

    def axes(self) -> dict[str, str]: ...


_CaseT = TypeVar("_CaseT", bound=_GridCase)


@dataclass(frozen=True)
class EvaluationScope:
    """Scope of an evaluation: the first `cases` of a grid of `seed`; None for all cases."""

    cases: int | None
    seed: int
    grid: GridName = "runs"


def evaluate_generated(scope: EvaluationScope, *, quiet: bool) -> tuple[EvaluatedCase, ...]:
    """Evaluate generated runs, as many at once as there are cores.

    Args:
        scope: part of the grid to evaluate
        quiet: True to show no progress bar; without a terminal there is none

    Returns:
        Each run with its verdict, in the order of the grid.
    """
    if scope.grid == "traces":
        cases = build_trace_grid(scope.seed)[: scope.cases]
        return _evaluate(cases, evaluate_trace, quiet=quiet)
    return _evaluate(build_full_grid(scope.seed)[: scope.cases], evaluate_case, quiet=quiet)


def _evaluate(
    cases: Sequence[_CaseT], evaluate: Callable[[_CaseT], CaseJudgment], *, quiet: bool
) -> tuple[EvaluatedCase, ...]:
    verdicts = _track_progress(evaluate_cases(cases, evaluate), len(cases), quiet=quiet)
    return tuple(
        EvaluatedCase(case.name, case.axes(), verdict)
        for case, verdict in zip(cases, verdicts, strict=True)
    )


def evaluate_emulated(
    scope: EvaluationScope, runs: Path, *, quiet: bool
) -> tuple[EvaluatedCase, ...]:
    """Evaluate real runs on the emulated continuum, one after the other.

    Args:
        scope: number of runs, and seed of their slowdowns
        runs: folder of the run folders
        quiet: True to print no progress

    Returns:
        Each run with its verdict. A run that failed or was unfaithful is omitted, because it
        proves nothing.
    """
    cases = draw_cases(scope.seed, scope.cases or DEFAULT_EMULATED_CASES)
    evaluated = (_run_emulated_case(case, runs, quiet=quiet) for case in cases)
    return tuple(each for each in evaluated if each is not None)


def _run_emulated_case(case: EmulatedCase, runs: Path, *, quiet: bool) -> EvaluatedCase | None:
    from laggard.analysis.tables.load_run import load_run

    if not quiet:
        print_text(case.name, err=True)
    result = (
        run_in_subprocess(SCENARIO, case.overrides(), runs, command=("run", "--no-report")).result
        or {}
    )
    if result.get("status") != "done":
        log.warning(
            "%s: the run ended with status `%s` and is omitted",
            case.name,
            result.get("status", "no result"),
        )
        return None
    folder = Path(str(result["folder"]))
    run = load_run(folder)
    findings = TypeAdapter(tuple[Finding, ...]).validate_python(result["stragglers"])
    steps = len(np.unique(run.spans.step))
    events = read_injected_events(run, folder)
    verdict = replace(
        judge_findings(events, findings, steps, None),
        online=judge_alarms(events, replay_alarms(run), steps),
    )
    return EvaluatedCase(f"{case.name}, {folder}", {"injected": case.family}, verdict)


def _track_progress(verdicts: Iterator[_T], count: int, *, quiet: bool) -> Iterator[_T]:
    if quiet or not sys.stderr.isatty():
        return verdicts
    from rich.console import Console
    from rich.progress import track

    return iter(
        track(verdicts, "evaluate", total=count, console=Console(stderr=True), transient=True)
    )
