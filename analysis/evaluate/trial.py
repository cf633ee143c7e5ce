"""Puts the analysis to the test: generates each case, analyses it, and judges what was found."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace

from laggard.analysis.evaluate.grid import Case
from laggard.analysis.evaluate.online import judge_online
from laggard.analysis.evaluate.paired import cost_error, paired_makespan_s
from laggard.analysis.evaluate.truth import events_of
from laggard.analysis.evaluate.verdict import Verdict, judge
from laggard.analysis.findings import analyse
from laggard.analysis.generate import generate_run
from laggard.analysis.online.replayed import alarms_of


def try_case(case: Case) -> Verdict:
    """Generates one run, analyses it, and judges the findings; the analysis is given the run alone,
    and the detector each step without those behind it.
    """
    spec = case.spec()
    run = generate_run(spec)
    assert run.record is not None
    assert run.record.outcome is not None
    makespan_s = run.record.outcome.makespan_s
    analysis = analyse(run)
    predicted_s = sum(finding.cost_s for finding in analysis.findings)
    off = cost_error(predicted_s, makespan_s, paired_makespan_s(spec)) if spec.injections else None
    events = events_of(spec)
    verdict = judge(events, analysis.findings, spec.steps, off)
    return replace(verdict, online=judge_online(events, alarms_of(run), spec.steps))


def try_cases(cases: Sequence[Case], processes: int | None = None) -> Iterator[Verdict]:
    """Tries cases side by side.

    Args:
        cases: which.
        processes: how many at once; without it as many as there are cores for this process.

    Yields:
        Their verdicts, in the order of the cases.
    """
    workers = min(processes or len(os.sched_getaffinity(0)), len(cases))
    if workers < 2:
        yield from map(try_case, cases)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(
        workers, get_context("spawn"), _leave_interrupts_to_the_parent
    ) as pool:
        yield from pool.map(try_case, cases, chunksize=1)


def _leave_interrupts_to_the_parent() -> None:
    """A terminal's Ctrl-C reaches every process of its group; the parent ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
