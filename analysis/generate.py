"""Synthetic all-reduce runs with known stragglers: what tests and evaluation hold the analysis
against.

A trace is simulated by the same rule as a real one: work, barrier, transfer. Noise is what a busy
two-core machine shows: lognormal jitter, short spikes, slow drift shared by everyone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from laggard.analysis.columns import SpanColumns, StepColumns
from laggard.analysis.generate_durations import BUFFER, GRADIENT, GROUPS, ORDER, Simulated, simulate
from laggard.analysis.generate_links import LinkWork, sample_links
from laggard.analysis.load import RankHost, Run, empty_links
from laggard.analysis.trace_spec import QUIET, Injection, Noise, Tier, TraceSpec
from laggard.run_schema import Outcome, RunRecord
from laggard.span_schema import NO_PEER, Flag, Phase

__all__ = [
    "QUIET",
    "Injection",
    "Noise",
    "Tier",
    "TraceSpec",
    "generate_makespan_s",
    "generate_run",
    "hosts_of",
]

_NS = 1_000_000_000


def generate_run(spec: TraceSpec, folder: Path = Path("generated")) -> Run:
    """Simulates a run.

    Args:
        spec: what to generate; the same spec gives the same run.
        folder: what `Run.folder` says; nothing is written.

    Returns:
        A run as `load_run` would return it.
    """
    hosts = hosts_of(spec)
    simulated = simulate(spec, hosts)
    links = (
        sample_links(_link_work(spec, simulated, hosts), spec.seed)
        if spec.with_links
        else empty_links()
    )
    return Run(
        folder=folder,
        record=_record(spec, hosts, simulated),
        hosts=hosts,
        spans=_spans(spec, simulated),
        steps=_steps(spec, simulated),
        links=links,
        fidelity=(),
    )


def generate_makespan_s(spec: TraceSpec) -> float:
    """The makespan alone of the run that `generate_run` would return, which takes a fraction of the
    time.
    """
    return simulate(spec, hosts_of(spec)).makespan_s


def hosts_of(spec: TraceSpec) -> tuple[RankHost, ...]:
    """The hosts of the run that a spec gives, in rank order."""
    rows = [(tier, machine) for tier in spec.tiers for machine in range(1, tier.hosts + 1)]
    return tuple(
        RankHost(
            rank,
            f"{tier.name}.trainer.1.{machine}",
            f"10.77.0.{rank + 1}",
            tier.name,
            tier.name,
            round(1.0 / tier.slowness, 6),
            0,
            0,
        )
        for rank, (tier, machine) in enumerate(rows)
    )


def _spans(spec: TraceSpec, simulated: Simulated) -> SpanColumns:
    start, end, evaluations = simulated.start, simulated.end, simulated.evaluations
    _, world, slots = start.shape
    index = np.indices(start.shape).reshape(3, -1)
    sizes = np.zeros(slots, dtype=np.int64)
    sizes[[BUFFER, GRADIENT]] = (spec.buffer_bytes, spec.gradient_bytes)
    at = np.repeat(np.array(sorted(evaluations), dtype=np.int64), world)
    paused = [
        np.concatenate([evaluations[s][k] for s in sorted(evaluations)] or [np.empty(0)])
        for k in (0, 1)
    ]
    number = np.repeat(np.arange(len(evaluations)), world)
    step = np.concatenate([index[0], at])
    begins = np.rint(np.concatenate([start.ravel(), paused[0]]) * _NS).astype(np.int64)
    ends = np.rint(np.concatenate([end.ravel(), paused[1]]) * _NS).astype(np.int64)
    none = np.zeros(at.size, dtype=np.int64)
    columns = SpanColumns(
        step=step,
        rank=np.concatenate([index[1], np.tile(np.arange(world), len(evaluations))]),
        lane=np.zeros_like(step),
        phase=np.concatenate(
            [np.array([p.code for p in ORDER])[index[2]], none + Phase.EVALUATE.code]
        ),
        seq=np.concatenate([index[2], none + slots]),
        start_ns=begins,
        dur_ns=ends - begins,
        group=np.concatenate([np.array(GROUPS)[index[2]], number]),
        peer=np.full_like(step, NO_PEER),
        bytes=np.concatenate([sizes[index[2]], none]),
        work=np.concatenate([simulated.samples[index[0], index[1]], none]),
        flags=np.where(step < spec.warm_up_steps, int(Flag.WARM_UP), 0),
    )
    return columns.where(np.lexsort((columns.seq, columns.start_ns, columns.rank, columns.step)))


def _steps(spec: TraceSpec, simulated: Simulated) -> StepColumns:
    steps, world, _ = simulated.start.shape
    samples = simulated.samples.ravel()
    step, rank = (a.ravel() for a in np.indices((steps, world)))
    zeros = np.zeros_like(step)
    accuracy = np.full(step.shape, np.nan)
    if spec.evaluate_every:
        evaluated = ((step + 1) % spec.evaluate_every == 0) & (rank == 0)
        accuracy[evaluated] = 1.0 - 0.9 * np.exp(-4.0 * (step[evaluated] + 1) / steps)
    return StepColumns(
        step=step,
        rank=rank,
        start_ns=np.rint(simulated.start[:, :, 0].ravel() * _NS).astype(np.int64),
        end_ns=np.rint(simulated.end[:, :, -1].ravel() * _NS).astype(np.int64),
        loss=2.3 * np.exp(-4.0 * step / steps),
        accuracy=accuracy,
        samples=samples,
        batch_size=samples,
        staleness=zeros,
        dropped=zeros,
        skipped=zeros,
        read_version=step,
        applied_version=step + 1,
        waited_for=zeros - 1,
    )


def _link_work(spec: TraceSpec, simulated: Simulated, hosts: tuple[RankHost, ...]) -> LinkWork:
    world = len(hosts)
    return LinkWork(
        names=tuple((hosts[r].host, hosts[(r + 1) % world].host) for r in range(world)),
        rate_mbps=simulated.rates_mbps,
        step_end_s=simulated.end[:, 0, GRADIENT],
        bytes_per_step=round(2 * (world - 1) / world * spec.gradient_bytes),
        busy_sigma=spec.noise.link_sigma,
    )


def _record(spec: TraceSpec, hosts: tuple[RankHost, ...], simulated: Simulated) -> RunRecord:
    makespan_s = simulated.makespan_s
    outcome = Outcome(
        makespan_s=makespan_s,
        steps=spec.steps,
        accuracy=0.96,
        samples_per_s=int(simulated.samples.sum()) / makespan_s,
        bytes_sent=spec.gradient_bytes * spec.steps * len(hosts),
        cost=None,
        fairness=1.0,
        stopped_by="steps",
    )
    return RunRecord(
        id=f"generated-{spec.seed}",
        scenario="generated",
        status="done",
        command=("generate",),
        seed=spec.seed,
        versions={},
        git=None,
        testbed="generated",
        hosts=tuple({"host": h.host, "tier": h.tier} for h in hosts),
        started="2026-01-01T00:00:00Z",
        outcome=outcome,
    )
