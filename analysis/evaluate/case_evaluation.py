"""Puts the analysis to the test: generates each case, analyzes it, and judges what was found."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from laggard.analysis.detection.online.recorded_run import replay_alarms
from laggard.analysis.evaluate.alarm_judgment import judge_alarms
from laggard.analysis.evaluate.case_grid import EvaluationCase
from laggard.analysis.evaluate.finding_judgment import CaseJudgment, judge_findings
from laggard.analysis.evaluate.ground_truth import build_events
from laggard.analysis.evaluate.synthetic.run_generator import generate_run, simulate_makespan_s
from laggard.analysis.evaluate.synthetic.trace_spec import TraceSpec
from laggard.analysis.findings.analysis_result import analyze_lockstep


def simulate_paired_makespan_s(spec: TraceSpec) -> float:
    """Makespan of a generated run if nothing had been injected: the seed gives it the same noise,
    step by step.
    """
    return simulate_makespan_s(replace(spec, injections=()))


def compute_cost_error(predicted_s: float, makespan_s: float, paired_s: float) -> float:
    """How far a predicted cost is from the true one.

    Args:
        predicted_s: what the analysis says that all causes cost together.
        makespan_s: of the run.
        paired_s: of the run without injection.

    Returns:
        |predicted - (makespan - paired)| / makespan.
    """
    return abs(predicted_s - (makespan_s - paired_s)) / makespan_s


def evaluate_case(case: EvaluationCase) -> CaseJudgment:
    """Generates one run, analyzes it, and judges the findings; the analysis is given the run alone,
    and the detector each step without those behind it.
    """
    spec = case.to_trace_spec()
    run = generate_run(spec)
    assert run.record is not None
    assert run.record.outcome is not None
    makespan_s = run.record.outcome.makespan_s
    analysis = analyze_lockstep(run)
    predicted_s = sum(finding.cost_s for finding in analysis.findings)
    off = (
        compute_cost_error(predicted_s, makespan_s, simulate_paired_makespan_s(spec))
        if spec.injections
        else None
    )
    events = build_events(spec)
    verdict = judge_findings(events, analysis.findings, spec.steps, off)
    return replace(verdict, online=judge_alarms(events, replay_alarms(run), spec.steps))


def evaluate_cases(
    cases: Sequence[EvaluationCase], processes: int | None = None
) -> Iterator[CaseJudgment]:
    """Tries cases side by side.

    Args:
        cases: which.
        processes: how many at once; without it as many as there are cores for this process.

    Yields:
        Their verdicts, in the order of the cases.
    """
    workers = min(processes or len(os.sched_getaffinity(0)), len(cases))
    if workers < 2:
        yield from map(evaluate_case, cases)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, get_context("spawn"), _ignore_interrupts) as pool:
        yield from pool.map(evaluate_case, cases, chunksize=1)


def _ignore_interrupts() -> None:
    """A terminal's Ctrl-C reaches every process of its group; the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
