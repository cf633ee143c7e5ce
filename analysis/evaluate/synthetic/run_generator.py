"""Generator of synthetic all-reduce runs with known stragglers, for tests and evaluation.

A trace is simulated by the rule of a real one: work, barrier, transfer. The noise is that of a
busy two-core machine: lognormal jitter, short spikes, and slow drift that all ranks share.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from laggard.analysis.evaluate.synthetic.durations import (
    BUFFER_SLOT,
    GRADIENT_SLOT,
    SLOT_GROUPS,
    SLOT_PHASES,
    SimulatedTimes,
    simulate_times,
)
from laggard.analysis.evaluate.synthetic.link_samples import LinkWork, sample_links
from laggard.analysis.evaluate.synthetic.trace_spec import QUIET, Injection, Noise, Tier, TraceSpec
from laggard.analysis.tables.columns import SpanColumns, StepColumns
from laggard.analysis.tables.load_run import RankHost, RunData, create_empty_links
from laggard.core.run_schema import RunOutcome, RunRecord
from laggard.core.span_schema import NO_PEER, Flag, Phase

__all__ = [
    "QUIET",
    "Injection",
    "Noise",
    "Tier",
    "TraceSpec",
    "generate_run",
]

_NS = 1_000_000_000


def generate_run(spec: TraceSpec, folder: Path = Path("generated")) -> RunData:
    """Simulate a run.

    Args:
        spec: specification of the run; the same specification gives the same run.
        folder: value of `RunData.folder`; nothing is written.

    Returns:
        A run as `load_run` would return it.

    Examples:
        >>> from laggard.analysis.evaluate.synthetic.trace_spec import Injection, TraceSpec
        >>> slow_drive = Injection("storage", factor=4.0, first=20, last=39, rank=0)
        >>> run = generate_run(TraceSpec(steps=60, injections=(slow_drive,)))
        >>> run.world_size
        8
    """
    hosts = build_hosts(spec)
    simulated = simulate_times(spec, hosts)
    links = (
        sample_links(_build_link_work(spec, simulated, hosts), spec.seed)
        if spec.with_links
        else create_empty_links()
    )
    return RunData(
        folder=folder,
        record=_build_record(spec, hosts, simulated),
        hosts=hosts,
        spans=_build_span_columns(spec, simulated),
        steps=_build_step_columns(spec, simulated),
        links=links,
        fidelity=(),
    )


def simulate_makespan_s(spec: TraceSpec) -> float:
    """Return the makespan of the run that `generate_run` would return.

    This takes a fraction of the time.
    """
    return simulate_times(spec, build_hosts(spec)).makespan_s


def build_hosts(spec: TraceSpec) -> tuple[RankHost, ...]:
    """Return the hosts of the run that a specification describes, in rank order."""
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


def _build_span_columns(spec: TraceSpec, simulated: SimulatedTimes) -> SpanColumns:
    start, end, evaluations = simulated.start, simulated.end, simulated.evaluations
    _, world, slots = start.shape
    index = np.indices(start.shape).reshape(3, -1)
    sizes = np.zeros(slots, dtype=np.int64)
    sizes[[BUFFER_SLOT, GRADIENT_SLOT]] = (spec.buffer_bytes, spec.gradient_bytes)
    # Evaluations are appended as one more slot of their steps, one row per rank.
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
            [np.array([p.code for p in SLOT_PHASES])[index[2]], none + Phase.EVALUATE.code]
        ),
        seq=np.concatenate([index[2], none + slots]),
        start_ns=begins,
        dur_ns=ends - begins,
        group=np.concatenate([np.array(SLOT_GROUPS)[index[2]], number]),
        peer=np.full_like(step, NO_PEER),
        bytes=np.concatenate([sizes[index[2]], none]),
        work=np.concatenate([simulated.samples[index[0], index[1]], none]),
        flags=np.where(step < spec.warm_up_steps, int(Flag.WARM_UP), 0),
    )
    # Rows of `spans.parquet` are ordered by step, rank and start.
    return columns.where(np.lexsort((columns.seq, columns.start_ns, columns.rank, columns.step)))


def _build_step_columns(spec: TraceSpec, simulated: SimulatedTimes) -> StepColumns:
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


def _build_link_work(
    spec: TraceSpec, simulated: SimulatedTimes, hosts: tuple[RankHost, ...]
) -> LinkWork:
    world = len(hosts)
    return LinkWork(
        names=tuple((hosts[r].host, hosts[(r + 1) % world].host) for r in range(world)),
        rate_mbps=simulated.rates_mbps,
        step_end_s=simulated.end[:, 0, GRADIENT_SLOT],
        # A ring all-reduce sends 2 (W - 1) / W times the gradient over every link.
        bytes_per_step=round(2 * (world - 1) / world * spec.gradient_bytes),
        busy_sigma=spec.noise.link_sigma,
    )


def _build_record(
    spec: TraceSpec, hosts: tuple[RankHost, ...], simulated: SimulatedTimes
) -> RunRecord:
    makespan_s = simulated.makespan_s
    outcome = RunOutcome(
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
