"""The grid of traces: what it is made of, and that its generator keeps its own promises."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.synthetic.trace_generator import (
    BACKWARD_S,
    FORWARD_S,
    MICROBATCHES,
    OPTIMIZER_S,
    STAGE_FACTOR,
    TRANSFER_S,
    TraceJob,
    generate_trace,
    simulate_trace_s,
)
from laggard.analysis.evaluate.trace_grid import (
    MAGNITUDES,
    NOISES,
    RANKS,
    REPETITIONS,
    SLOW_PLACES,
    STEPS,
    TraceCase,
    build_trace_events,
    build_trace_grid,
    evaluate_trace,
)
from laggard.analysis.findings.analysis_result import analyze_lockstep

GRID = build_trace_grid(7)
SMALL = [case for case in GRID if case.steps <= 5 and case.ranks == 4]
QUIET = TraceJob("data parallel", 4, 3, "none", 1.0, 0, 0.0, 0)


def test_every_combination_is_in_it() -> None:
    cells = Counter((c.layout, c.slow, c.steps, c.ranks, c.magnitude, c.noise) for c in GRID)
    slow = {cell: count for cell, count in cells.items() if cell[1] != "none"}
    assert set(slow.values()) == {REPETITIONS}
    assert len(slow) == len(SLOW_PLACES) * len(STEPS) * len(RANKS) * len(MAGNITUDES) * len(NOISES)
    assert sum(case.slow == "none" for case in GRID[:300]) == 100
    assert len({case.number for case in GRID}) == len(GRID)
    assert [case.number for case in build_trace_grid(8)] != [case.number for case in GRID]


def test_durations_without_noise_in_closed_form() -> None:
    forward, backward = FORWARD_S, BACKWARD_S
    local = forward + backward + OPTIMIZER_S
    assert simulate_trace_s(QUIET) == pytest.approx(3 * (local + TRANSFER_S))
    groups = replace(QUIET, layout="groups")
    assert simulate_trace_s(groups) == pytest.approx(3 * (local + 2 * TRANSFER_S))
    # The second stage is never idle but while the first microbatch comes and the last one goes.
    pipeline = (MICROBATCHES * STAGE_FACTOR + 1) * (forward + backward) + OPTIMIZER_S
    found = simulate_trace_s(replace(QUIET, layout="pipeline", steps=1))
    assert found == pytest.approx(pipeline, abs=4 * TRANSFER_S * MICROBATCHES)


@given(st.sampled_from(SMALL))
@settings(max_examples=25, deadline=None)
def test_a_trace_takes_as_long_as_was_simulated(case: TraceCase) -> None:
    job = case.to_job()
    assert job == case.to_job()
    analysis = analyze_lockstep(generate_trace(job))
    assert analysis.makespan_s == pytest.approx(simulate_trace_s(job), rel=1e-6)
    assert analysis.replayed_s == pytest.approx(analysis.makespan_s, rel=1e-6)
    assert simulate_trace_s(job.healthy()) <= simulate_trace_s(job) + 1e-12
    for event in build_trace_events(job, 0.5):
        assert (event.first, event.last) == (job.slow_steps[0], job.slow_steps[-1])


@pytest.mark.parametrize(("layout", "slow"), SLOW_PLACES)
def test_a_large_slowdown_is_found(layout: str, slow: str) -> None:
    case = next(
        case
        for case in SMALL
        if (case.layout, case.slow, case.magnitude, case.noise) == (layout, slow, 4.0, 0.02)
    )
    verdict = evaluate_trace(case)
    assert verdict.errors == 0
    assert verdict.rank_named
    assert verdict.cost_error is not None
    assert verdict.cost_error < 0.05
