"""Synthetic all-reduce runs with known stragglers: what tests and evaluation hold the analysis against.

A trace is simulated by the same rule as a real one: work, barrier, transfer. Noise is what a busy two-core machine shows:
lognormal jitter, short spikes, slow drift shared by everyone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from laggard.analysis.columns import FloatArray, IntArray, LinkColumns, SpanColumns, StepColumns
from laggard.analysis.generate_links import LinkWork, sample_links
from laggard.analysis.load import RankHost, Run
from laggard.run_schema import Outcome, RunRecord
from laggard.span_schema import NO_GROUP, NO_PEER, Flag, Phase

_NS = 1_000_000_000
_ORDER = (
    Phase.FETCH,
    Phase.PREP,
    Phase.COMM,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.COMM,
    Phase.OPTIMIZER,
    Phase.OTHER,
)
_GROUPS = (NO_GROUP, NO_GROUP, 0, NO_GROUP, NO_GROUP, 1, NO_GROUP, NO_GROUP)
_BUFFER, _GRADIENT = 2, 5
_COMPUTE = (1, 3, 4, 6)


@dataclass(frozen=True)
class Tier:
    """One tier: its name, number of hosts and how much slower than the fastest it computes by design."""

    name: str
    hosts: int
    slowness: float = 1.0


@dataclass(frozen=True)
class Injection:
    """A slowness put into the trace; steps are inclusive, `last=None` is the end of the run.

    `rank` for compute and storage; `tiers` (unordered) for network.
    """

    family: Literal["compute", "network", "storage"]
    factor: float
    first: int = 0
    last: int | None = None
    rank: int | None = None
    tiers: tuple[str, str] | None = None


@dataclass(frozen=True)
class Noise:
    """Multiplicative noise of durations.

    Attributes:
        sigma: lognormal jitter per rank and step.
        spike: probability that a spike of 2x and one to three steps begins.
        drift: amplitude of slow drift, shared by all ranks.
        host: spread of the hosts' true speeds.
        transfer_sigma: jitter of collectives.
        episode: probability per step that half of the ranks (a core's) slow down by 1.3 for 5 to 30 steps.
    """

    sigma: float = 0.05
    spike: float = 0.01
    drift: float = 0.04
    host: float = 0.01
    transfer_sigma: float = 0.10
    episode: float = 0.0


QUIET = Noise(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class TraceSpec:
    """What to generate. Phase durations are seconds of the fastest tier at a full per-rank batch."""

    tiers: tuple[Tier, ...] = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4))
    steps: int = 600
    samples: int = 16
    steps_per_epoch: int = 12
    fetch_s: float = 0.001
    prep_s: float = 0.002
    forward_s: float = 0.020
    backward_s: float = 0.040
    optimizer_s: float = 0.003
    other_s: float = 0.0005
    fixed_share: float = 0.2
    gradient_bytes: int = 600_000
    buffer_bytes: int = 4_000
    rate_mbps: float = 200.0
    tier_rates_mbps: Mapping[tuple[str, str], float] = field(default_factory=dict)
    evaluate_every: int = 60
    evaluate_s: float = 0.5
    warm_up_steps: int = 3
    noise: Noise = Noise()
    injections: tuple[Injection, ...] = ()
    with_links: bool = True
    seed: int = 0


def generate_run(spec: TraceSpec, folder: Path = Path("generated")) -> Run:
    """Simulates a run.

    Args:
        spec: what to generate; the same spec gives the same run.
        folder: what `Run.folder` says; nothing is written.

    Returns:
        A run as `load_run` would return it.
    """
    rng = np.random.default_rng(spec.seed)
    hosts = _hosts(spec)
    work = _work(spec, rng, len(hosts))
    samples = _samples(spec)
    ring = _ring(spec, hosts)
    transfer = _transfers(spec, rng, ring)
    start, end, evaluations = _simulate(spec, rng, work, transfer)
    spans = _spans(spec, start, end, evaluations, samples)
    steps = _steps(spec, start, end, samples)
    outside = float(sum(e[1].min() - e[0].max() for e in evaluations.values()))
    over = max(float(end[-1].max()), *(float(resume.max()) for _, resume in evaluations.values()), 0.0)
    record = _record(spec, hosts, over - outside)
    links = sample_links(_link_work(spec, ring, hosts, end), spec.seed) if spec.with_links else _no_links()
    return Run(folder, record, hosts, spans, steps, links, ())


def _hosts(spec: TraceSpec) -> tuple[RankHost, ...]:
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


def _samples(spec: TraceSpec) -> IntArray:
    """Samples per rank and step, [S]: the last step of an epoch is short."""
    samples = np.full(spec.steps, spec.samples, dtype=np.int64)
    samples[spec.steps_per_epoch - 1 :: spec.steps_per_epoch] = max(1, spec.samples // 4)
    return samples


def _spikes(rng: np.random.Generator, shape: tuple[int, ...], probability: float) -> FloatArray:
    """1 everywhere but in spikes of 2x that last one to three steps (axis 0)."""
    begins = rng.random(shape) < probability
    length = rng.integers(1, 4, shape)
    hit = begins.copy()
    for later in (1, 2):
        hit[later:] |= begins[:-later] & (length[:-later] > later)
    return np.where(hit, rng.uniform(1.7, 2.3, shape), 1.0)


def _episodes(spec: TraceSpec, rng: np.random.Generator, world: int) -> FloatArray:
    """1 but where half of the ranks are held up together, [S, W]."""
    slow = np.ones((spec.steps, world))
    for first in np.flatnonzero(rng.random(spec.steps) < spec.noise.episode):
        slow[first : first + rng.integers(5, 31), rng.integers(0, 2) :: 2] = 1.3
    return slow


def _work(spec: TraceSpec, rng: np.random.Generator, world: int) -> FloatArray:
    """Durations of the local phases, [S, W, 8]; the two collectives are 0."""
    base = np.array(
        [spec.fetch_s, spec.prep_s, 0.0, spec.forward_s, spec.backward_s, 0.0, spec.optimizer_s, spec.other_s]
    )
    load = spec.fixed_share + (1.0 - spec.fixed_share) * _samples(spec) / spec.samples
    work = np.broadcast_to(base, (spec.steps, world, 8)).copy()
    work[:, :, [1, 3, 4]] *= load[:, None, None]
    slowness = np.repeat([t.slowness for t in spec.tiers], [t.hosts for t in spec.tiers])
    speed = slowness * np.exp(spec.noise.host * rng.standard_normal(world))
    drift = np.exp(
        spec.noise.drift * np.sin(np.linspace(0, 2 * np.pi * rng.uniform(1, 3), spec.steps) + rng.uniform(0, 6))
    )
    shape = (spec.steps, world)
    own = np.exp(spec.noise.sigma * rng.standard_normal(shape)) * _spikes(rng, shape, spec.noise.spike)
    compute = (speed[None, :] * drift[:, None] * own * _episodes(spec, rng, world))[:, :, None]
    work[:, :, list(_COMPUTE)] *= compute
    work *= np.exp(spec.noise.sigma / 2 * rng.standard_normal(work.shape))
    work[: spec.warm_up_steps] *= 3.0
    for cause in spec.injections:
        rows = slice(cause.first, None if cause.last is None else cause.last + 1)
        if cause.family == "compute":
            work[rows, cause.rank, _COMPUTE[0] : 7] *= cause.factor
        elif cause.family == "storage":
            work[rows, cause.rank, 0] *= cause.factor
    return work


def _ring(spec: TraceSpec, hosts: tuple[RankHost, ...]) -> FloatArray:
    """Rate of each ring link (rank to next rank) at each step, in Mbit/s, [S, W]."""
    rates = np.empty((spec.steps, len(hosts)))
    for rank, src in enumerate(hosts):
        pair = (src.tier, hosts[(rank + 1) % len(hosts)].tier)
        rates[:, rank] = spec.tier_rates_mbps.get(pair, spec.tier_rates_mbps.get(pair[::-1], spec.rate_mbps))
        for cause in spec.injections:
            if cause.tiers is not None and sorted(cause.tiers) == sorted(pair):
                rates[cause.first : None if cause.last is None else cause.last + 1, rank] /= cause.factor
    return rates


def _transfers(spec: TraceSpec, rng: np.random.Generator, ring: FloatArray) -> FloatArray:
    """Seconds of the buffer broadcast and the gradient all-reduce once all have arrived, [S, 2]."""
    world = ring.shape[1]
    slowest = ring.min(axis=1)
    sent_bits = np.array([spec.buffer_bytes, 2 * (world - 1) / world * spec.gradient_bytes]) * 8
    shape = (spec.steps, 2)
    noise = np.exp(spec.noise.transfer_sigma * rng.standard_normal(shape)) * _spikes(rng, shape, spec.noise.spike)
    seconds: FloatArray = (sent_bits[None, :] / (slowest[:, None] * 1e6) + 0.002) * noise
    return seconds


def _simulate(
    spec: TraceSpec, rng: np.random.Generator, work: FloatArray, transfer: FloatArray
) -> tuple[FloatArray, FloatArray, dict[int, tuple[FloatArray, FloatArray]]]:
    """Start and end of every span, [S, W, 8], and arrival and resume of every evaluation."""
    start, end = np.empty_like(work), np.empty_like(work)
    now = np.zeros(work.shape[1])
    evaluations: dict[int, tuple[FloatArray, FloatArray]] = {}
    for step in range(spec.steps):
        for slot in range(len(_ORDER)):
            start[step, :, slot] = now
            if slot == _GRADIENT:
                now = np.full_like(now, now.max() + transfer[step, 1])
            elif slot == _BUFFER:
                root = now[0] + transfer[step, 0] / 2
                now = np.full_like(now, now.max() + transfer[step, 0])
                now[0] = root
            else:
                now = now + work[step, :, slot]
            end[step, :, slot] = now
        if spec.evaluate_every and (step + 1) % spec.evaluate_every == 0:
            resume = now.max() + spec.evaluate_s + rng.uniform(0, 1e-3, now.shape)
            evaluations[step] = (now, resume)
            now = resume
    return start, end, evaluations


def _spans(
    spec: TraceSpec,
    start: FloatArray,
    end: FloatArray,
    evaluations: Mapping[int, tuple[FloatArray, FloatArray]],
    samples: IntArray,
) -> SpanColumns:
    _, world, slots = start.shape
    index = np.indices(start.shape).reshape(3, -1)
    sizes = np.zeros(slots, dtype=np.int64)
    sizes[[_BUFFER, _GRADIENT]] = (spec.buffer_bytes, spec.gradient_bytes)
    at = np.repeat(np.array(sorted(evaluations), dtype=np.int64), world)
    paused = [np.concatenate([evaluations[s][k] for s in sorted(evaluations)] or [np.empty(0)]) for k in (0, 1)]
    number = np.repeat(np.arange(len(evaluations)), world)
    step = np.concatenate([index[0], at])
    begins = np.rint(np.concatenate([start.ravel(), paused[0]]) * _NS).astype(np.int64)
    ends = np.rint(np.concatenate([end.ravel(), paused[1]]) * _NS).astype(np.int64)
    none = np.zeros(at.size, dtype=np.int64)
    columns = SpanColumns(
        step=step,
        rank=np.concatenate([index[1], np.tile(np.arange(world), len(evaluations))]),
        lane=np.zeros_like(step),
        phase=np.concatenate([np.array([p.code for p in _ORDER])[index[2]], none + Phase.EVALUATE.code]),
        seq=np.concatenate([index[2], none + slots]),
        start_ns=begins,
        dur_ns=ends - begins,
        group=np.concatenate([np.array(_GROUPS)[index[2]], number]),
        peer=np.full_like(step, NO_PEER),
        bytes=np.concatenate([sizes[index[2]], none]),
        work=np.concatenate([samples[index[0]], none]),
        flags=np.where(step < spec.warm_up_steps, int(Flag.WARM_UP), 0),
    )
    return columns.where(np.lexsort((columns.seq, columns.start_ns, columns.rank, columns.step)))


def _steps(spec: TraceSpec, start: FloatArray, end: FloatArray, samples: IntArray) -> StepColumns:
    steps, world, _ = start.shape
    step, rank = (a.ravel() for a in np.indices((steps, world)))
    zeros = np.zeros_like(step)
    accuracy = np.full(step.shape, np.nan)
    if spec.evaluate_every:
        evaluated = ((step + 1) % spec.evaluate_every == 0) & (rank == 0)
        accuracy[evaluated] = 1.0 - 0.9 * np.exp(-4.0 * (step[evaluated] + 1) / steps)
    return StepColumns(
        step=step,
        rank=rank,
        start_ns=np.rint(start[:, :, 0].ravel() * _NS).astype(np.int64),
        end_ns=np.rint(end[:, :, -1].ravel() * _NS).astype(np.int64),
        loss=2.3 * np.exp(-4.0 * step / steps),
        accuracy=accuracy,
        samples=samples[step],
        batch_size=samples[step],
        staleness=zeros,
        dropped=zeros,
        skipped=zeros,
        read_version=step,
        applied_version=step + 1,
        waited_for=zeros - 1,
    )


def _link_work(spec: TraceSpec, ring: FloatArray, hosts: tuple[RankHost, ...], end: FloatArray) -> LinkWork:
    world = len(hosts)
    return LinkWork(
        names=tuple((hosts[r].host, hosts[(r + 1) % world].host) for r in range(world)),
        rate_mbps=ring,
        step_end_s=end[:, 0, _GRADIENT],
        bytes_per_step=round(2 * (world - 1) / world * spec.gradient_bytes),
    )


def _no_links() -> LinkColumns:
    from laggard.analysis.load import empty_links

    return empty_links()


def _record(spec: TraceSpec, hosts: tuple[RankHost, ...], makespan_s: float) -> RunRecord:
    samples = int(_samples(spec).sum()) * len(hosts)
    outcome = Outcome(
        makespan_s=makespan_s,
        steps=spec.steps,
        accuracy=0.96,
        samples_per_s=samples / makespan_s,
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
