"""Runs that every test of this room may look at, and an analysis of them made by hand: what is
drawn is then known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from laggard.analysis.evaluate.synthetic.run_generator import (
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.findings.analysis_result import AnalysisResult
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.timelines.time_split import TimeSplit
from laggard.core.run_schema import FidelityCheck, Finding, RunOutcome, StageDuration
from laggard.core.span_schema import COMPUTE_PHASES, Phase

STEPS = 300
BURST = (120, 165)


def _sum_over(run: RunData, phases: set[Phase], steps: int) -> FloatArray:
    table = np.zeros((steps, run.world_size))
    rows = run.spans.where(np.isin(run.spans.phase, [p.code for p in phases]))
    np.add.at(table, (rows.step, rows.rank), rows.dur_ns / 1e9)
    return table


def _arrivals(run: RunData, steps: int) -> tuple[FloatArray, FloatArray]:
    """Wait and transfer of the gradient collective, [S, W]."""
    rows = run.spans.where((run.spans.phase == Phase.COMM.code) & (run.spans.group == 1))
    start, end = (np.zeros((steps, run.world_size)) for _ in range(2))
    start[rows.step, rows.rank], end[rows.step, rows.rank] = rows.start_ns / 1e9, rows.end_ns / 1e9
    latest = start.max(axis=1, keepdims=True)
    return latest - start, end - latest


def analysis_by_hand(
    run: RunData, findings: tuple[Finding, ...], unexplained: float = 0.004
) -> AnalysisResult:
    """An analysis of a generated run whose findings are given."""
    steps = int(run.steps.step.max()) + 1
    compute = _sum_over(run, set(COMPUTE_PHASES), steps)
    wait, transfer = _arrivals(run, steps)
    step_s = (run.steps.end_ns - run.steps.start_ns).reshape(steps, -1) / 1e9
    split = [
        _sum_over(run, {p}, steps).sum(axis=0)
        for p in (Phase.FETCH, Phase.PREP, Phase.OTHER, Phase.EVALUATE)
    ]
    assert run.record is not None
    assert run.record.outcome is not None
    makespan = run.record.outcome.makespan_s
    cost = sum(f.cost_s for f in findings)
    return AnalysisResult(
        findings=findings,
        hosts=run.hosts,
        steps=np.arange(steps),
        step_s=step_s,
        compute_s=compute,
        wait_s=wait,
        transfer_s=transfer,
        slowdown=compute / np.median(compute[:, :2], axis=1, keepdims=True),
        transfer_slowdown=transfer.max(axis=1) / np.median(transfer.max(axis=1)),
        time_split=TimeSplit(
            fetch_s=split[0],
            prep_s=split[1],
            compute_s=compute.sum(0) - split[1],
            interconnect_s=0.1 * transfer.sum(0),
            network_s=0.9 * transfer.sum(0),
            wait_s=wait.sum(0),
            idle_s=np.zeros_like(split[2]),
            other_s=split[2],
            evaluate_s=split[3],
        ),
        makespan_s=makespan,
        outside_clock_s=2.5,
        replayed_s=makespan,
        without_causes_s=makespan - cost,
        modeled_s=makespan * (1 - unexplained),
    )


def checks(*, good: bool = True) -> tuple[FidelityCheck, ...]:
    """What the emulation of a three-tier run would have measured; one CPU share is off when not
    `good`."""
    tiers = ("cloud", "edge", "fog")
    pairs = [(a, b) for a in tiers for b in tiers if a < b]
    rtt = [
        FidelityCheck(
            kind="rtt",
            src=a,
            dst=b,
            requested=40.0,
            measured=40.21,
            unit="ms",
            tolerance=0.8,
            ok=True,
            detail="idle",
        )
        for a, b in pairs
    ]
    rate = [
        FidelityCheck(
            kind="rate",
            src=a,
            dst=b,
            requested=96.5,
            measured=95.9,
            unit="Mbit/s",
            tolerance=4.8,
            ok=True,
        )
        for a, b in pairs
    ]
    cpu = [
        FidelityCheck(
            kind="cpu",
            src=f"edge.trainer.1.{n}",
            dst=None,
            requested=4.0,
            measured=4.05 if good or n < 4 else 5.31,
            unit="x",
            tolerance=0.2,
            ok=good or n < 4,
            detail="phases of 10 ms",
        )
        for n in range(1, 5)
    ]
    return (*rtt, *rate, *cpu)


def _quickstart_findings() -> tuple[Finding, ...]:
    edge = tuple(
        Finding(
            rank=rank,
            host=f"edge.trainer.1.{rank - 3}",
            link=None,
            family="compute",
            kind="deterministic",
            first_step=0,
            last_step=STEPS - 1,
            slowdown=4.1,
            cost_s=8.0,
            confidence=0.99,
            masked=False,
        )
        for rank in range(4, 8)
    )
    link = Finding(
        rank=None,
        host=None,
        link=("edge.trainer.1.1", "cloud.trainer.1.1"),
        family="network",
        kind="dynamic",
        first_step=BURST[0],
        last_step=BURST[1],
        slowdown=3.2,
        cost_s=5.0,
        confidence=0.97,
        masked=False,
    )
    return (*edge, link)


@pytest.fixture(scope="session")
def quickstart_run() -> RunData:
    """Two cloud, two fog and four slow edge hosts; the links from edge to cloud are slow for 46
    steps."""
    spec = TraceSpec(
        tiers=(Tier("cloud", 2), Tier("fog", 2, 2.0), Tier("edge", 4, 4.1)),
        steps=STEPS,
        injections=(Injection("network", 3.2, *BURST, tiers=("edge", "cloud")),),
        seed=3,
    )
    run = generate_run(spec)
    assert run.record is not None
    outcome = RunOutcome(
        **(run.record.outcome or pytest.fail("no outcome")).model_dump() | {"cost": 0.0123}
    )
    record = run.record.model_copy(
        update={
            "id": "20261121-054300-1",
            "scenario": "quickstart",
            "outcome": outcome,
            "command": (
                "laggard",
                "run",
                "experiments/quickstart",
                "--set",
                "workload.batch_size=64",
            ),
            "versions": {"laggard": "0.1.0", "python": "3.11.2", "torch": "2.13.0"},
            "git": "1790c0c",
            "testbed": "local",
            "backend": "userspace",
            "dilation": 1.5,
            "stages": (
                StageDuration(name="bring-up", seconds=1.3),
                StageDuration(name="training", seconds=88.1),
            ),
            "hosts": ({"kernel": "6.1.0", "cpu": "AMD EPYC 7702", "cores": 2, "smt": None},),
        }
    )
    return replace(run, record=record, fidelity=checks())


@pytest.fixture(scope="session")
def quickstart_analysis(quickstart_run: RunData) -> AnalysisResult:
    """The findings that the run was made with."""
    return analysis_by_hand(quickstart_run, _quickstart_findings())


@pytest.fixture(scope="session")
def level_run() -> RunData:
    """A run without stragglers."""
    return generate_run(
        TraceSpec(tiers=(Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4)), steps=200, seed=5)
    )


@pytest.fixture(scope="session")
def level_analysis(level_run: RunData) -> AnalysisResult:
    """Nothing found."""
    return analysis_by_hand(level_run, ())
