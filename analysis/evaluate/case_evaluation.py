"""Evaluation of cases: each is generated, analyzed and judged."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from laggard.analysis.detection.online.recorded_run import replay_alarms
from laggard.analysis.evaluate.alarm_judgment import judge_alarms
from laggard.analysis.evaluate.case_grid import EvaluationCase
from laggard.analysis.evaluate.finding_judgment import CaseJudgment, judge_findings
from laggard.analysis.evaluate.ground_truth import build_events
from laggard.analysis.evaluate.synthetic.run_generator import generate_run, simulate_makespan_s
from laggard.analysis.evaluate.synthetic.trace_spec import TraceSpec
from laggard.analysis.findings.analysis_result import analyze_lockstep
from laggard.core.process.termination_signals import hold_signals

_Case = TypeVar("_Case")


def simulate_paired_makespan_s(spec: TraceSpec) -> float:
    """Return the makespan of a generated run as if nothing had been injected.

    The seed gives the paired run the same noise, step by step.
    """
    return simulate_makespan_s(replace(spec, injections=()))


def compute_cost_error(predicted_s: float, makespan_s: float, paired_s: float) -> float:
    """Return the relative error of a predicted cost.

    Args:
        predicted_s: predicted cost of all causes together, in seconds.
        makespan_s: makespan of the run.
        paired_s: makespan of the same run without injection.

    Returns:
        |predicted - (makespan - paired)| / makespan.
    """
    return abs(predicted_s - (makespan_s - paired_s)) / makespan_s


def evaluate_case(case: EvaluationCase) -> CaseJudgment:
    """Generate one run, analyze it, and judge the findings and alarms.

    The analysis receives the run without its truth. The live detector receives one step after the
    other, without later ones.
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
    cases: Sequence[_Case],
    evaluate: Callable[[_Case], CaseJudgment],
    processes: int | None = None,
) -> Iterator[CaseJudgment]:
    """Evaluate cases in parallel.

    Args:
        cases: the cases.
        evaluate: evaluation of one case, a function of a module.
        processes: number of processes; None for the number of cores that this process may use.

    Yields:
        Their judgments, in the order of the cases.
    """
    workers = min(processes or len(os.sched_getaffinity(0)), len(cases))
    if workers < 2:
        yield from map(evaluate, cases)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        # The pool's processes start in this call, and never receive Ctrl-C: a terminal sends it to
        # every process of its group, also to one that still imports. The parent ends the pool.
        with hold_signals([signal.SIGINT]):
            judgments = pool.map(evaluate, cases, chunksize=1)
        yield from judgments
