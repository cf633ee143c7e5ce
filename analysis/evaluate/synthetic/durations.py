"""Durations in a synthetic run: local work, link rates, transfers, and the resulting schedule.

Noise is drawn before anything is injected, and in the same order for all injections. Two runs that
differ only in their injections therefore agree in everything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.families import FAMILIES
from laggard.analysis.evaluate.synthetic.trace_spec import Injection, TraceSpec
from laggard.analysis.tables.columns import FloatArray, IntArray
from laggard.analysis.tables.load_run import RankHost
from laggard.core.span_schema import NO_GROUP, Phase

SLOT_PHASES = (
    Phase.FETCH,
    Phase.PREP,
    Phase.COMM,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.COMM,
    Phase.OPTIMIZER,
    Phase.OTHER,
)
SLOT_GROUPS = (NO_GROUP, NO_GROUP, 0, NO_GROUP, NO_GROUP, 1, NO_GROUP, NO_GROUP)
BUFFER_SLOT, GRADIENT_SLOT = 2, 5
# Slots of compute phases, and the shares of work that imbalanced ranks have.
_COMPUTE = (1, 3, 4, 6)
_SHARES = (0.5, 0.75, 1.0, 1.25, 1.5)
# Random streams of their own, so that these options leave all other noise unchanged.
_IMBALANCE_STREAM = 1
_FETCH_STREAM = 2


@dataclass(frozen=True)
class SimulatedTimes:
    """Schedule of a run: S steps, W ranks, 8 slots per step; times are in seconds.

    Attributes:
        start: start of every slot, [S, W, 8].
        end: end of every slot, [S, W, 8].
        evaluations: for each step that an evaluation follows, the ranks' arrival at it and their
            resumption, [W] each.
        samples: samples per step and rank, [S, W].
        rates_mbps: rates of the ring's links, from each rank to the next, [S, W].
    """

    start: FloatArray
    end: FloatArray
    evaluations: Mapping[int, tuple[FloatArray, FloatArray]]
    samples: IntArray
    rates_mbps: FloatArray

    @property
    def makespan_s(self) -> float:
        """Return the time from the first start to the last end, without evaluations."""
        outside = float(sum(e[1].min() - e[0].max() for e in self.evaluations.values()))
        over = max(
            float(self.end[-1].max()),
            *(float(resume.max()) for _, resume in self.evaluations.values()),
            0.0,
        )
        return over - outside


def simulate_times(spec: TraceSpec, hosts: tuple[RankHost, ...]) -> SimulatedTimes:
    """Draw all durations and schedule them as a synchronous ring all-reduce.

    Each step consists of work, barrier and transfer.

    Args:
        spec: specification of the run.
        hosts: hosts of the run, in rank order.

    Returns:
        The schedule; it is the same for the same specification.
    """
    rng = np.random.default_rng(spec.seed)
    samples = _draw_samples(spec, len(hosts))
    work = _draw_work(spec, rng, samples)
    rates_mbps = _compute_link_rates(spec, hosts)
    transfer = _draw_transfers(spec, rng, rates_mbps)
    start, end, evaluations = _schedule_steps(spec, rng, work, transfer)
    return SimulatedTimes(start, end, evaluations, samples, rates_mbps)


def _draw_samples(spec: TraceSpec, world: int) -> IntArray:
    """Return the samples per step and rank, [S, W].

    The last step of an epoch has a quarter of the samples, and imbalanced ranks have more or less
    than an equal share.
    """
    share = _draw_shares(spec, world)
    share[spec.steps_per_epoch - 1 :: spec.steps_per_epoch] /= 4
    return np.maximum(np.rint(share * spec.samples), 1).astype(np.int64)


def _draw_shares(spec: TraceSpec, world: int) -> FloatArray:
    """Return each rank's work relative to an equal share, [S, W].

    The values come from a random stream of their own.
    """
    rng = np.random.default_rng((spec.seed, _IMBALANCE_STREAM))
    share = np.ones((spec.steps, world))
    if spec.imbalance == "shares":
        share *= rng.choice(_SHARES, world)
    elif spec.imbalance == "drawn":
        share *= rng.choice(_SHARES, share.shape)
    elif spec.imbalance == "shift":
        first, length = int(rng.integers(spec.steps)), int(rng.integers(20, 101))
        share[first : first + length, int(rng.integers(world))] *= 2.0
    return share


def _draw_spikes(
    rng: np.random.Generator, shape: tuple[int, ...], probability: float
) -> FloatArray:
    """Return 1 everywhere except in spikes of about 2x that last one to three steps (axis 0)."""
    begins = rng.random(shape) < probability
    length = rng.integers(1, 4, shape)
    hit = begins.copy()
    # A spike that lasts n steps also covers the n - 1 steps after its first.
    for later in (1, 2):
        hit[later:] |= begins[:-later] & (length[:-later] > later)
    return np.where(hit, rng.uniform(1.7, 2.3, shape), 1.0)


def _draw_episodes(spec: TraceSpec, rng: np.random.Generator, world: int) -> FloatArray:
    """Return 1 everywhere except where half of the ranks are slow together, [S, W]."""
    slow = np.ones((spec.steps, world))
    for first in np.flatnonzero(rng.random(spec.steps) < spec.noise.episode):
        slow[first : first + rng.integers(5, 31), rng.integers(0, 2) :: 2] = 1.3
    return slow


def _draw_work(spec: TraceSpec, rng: np.random.Generator, samples: IntArray) -> FloatArray:
    """Return the durations of the local phases, [S, W, 8]; the two collectives are 0."""
    base = np.array(
        [
            spec.fetch_s,
            spec.prep_s,
            0.0,
            spec.forward_s,
            spec.backward_s,
            0.0,
            spec.optimizer_s,
            spec.other_s,
        ]
    )
    world = samples.shape[1]
    load = spec.fixed_share + (1.0 - spec.fixed_share) * samples / spec.samples
    work = np.broadcast_to(base, (spec.steps, world, 8)).copy()
    work[:, :, [1, 3, 4]] *= load[:, :, None]
    slowness = np.repeat([t.slowness for t in spec.tiers], [t.hosts for t in spec.tiers])
    speed = slowness * np.exp(spec.noise.host * rng.standard_normal(world))
    drift = np.exp(
        spec.noise.drift
        * np.sin(np.linspace(0, 2 * np.pi * rng.uniform(1, 3), spec.steps) + rng.uniform(0, 6))
    )
    shape = (spec.steps, world)
    own = np.exp(spec.noise.sigma * rng.standard_normal(shape)) * _draw_spikes(
        rng, shape, spec.noise.spike
    )
    compute = (speed[None, :] * drift[:, None] * own * _draw_episodes(spec, rng, world))[:, :, None]
    work[:, :, list(_COMPUTE)] *= compute
    work *= np.exp(spec.noise.sigma / 2 * rng.standard_normal(work.shape))
    if spec.noise.fetch_sigma:
        reading = np.random.default_rng((spec.seed, _FETCH_STREAM))
        work[:, :, 0] *= np.exp(spec.noise.fetch_sigma * reading.standard_normal(shape))
    work[: spec.warm_up_steps] *= 3.0
    for injection in spec.injections:
        rows = slice(injection.first, None if injection.last is None else injection.last + 1)
        phases = FAMILIES[injection.family].phases
        if phases:
            slots = [slot for slot, phase in enumerate(SLOT_PHASES) if phase in phases]
            work[rows, injection.rank, slots] *= injection.factor
    return work


def _compute_link_rates(spec: TraceSpec, hosts: tuple[RankHost, ...]) -> FloatArray:
    """Return the rate of each ring link (rank to next rank) at each step, in Mbit/s, [S, W]."""
    rates = np.empty((spec.steps, len(hosts)))
    for rank, src in enumerate(hosts):
        pair = (src.tier, hosts[(rank + 1) % len(hosts)].tier)
        rates[:, rank] = spec.tier_rates_mbps.get(
            pair, spec.tier_rates_mbps.get(pair[::-1], spec.rate_mbps)
        )
        for injection in spec.injections:
            if FAMILIES[injection.family].uses_links and is_link_slowed(injection, rank, pair):
                rates[
                    injection.first : None if injection.last is None else injection.last + 1, rank
                ] /= injection.factor
    return rates


def is_link_slowed(injection: Injection, rank: int, pair: tuple[str, str]) -> bool:
    """Return whether a network injection slows the link from `rank` to the next one.

    Args:
        injection: injection of the network family.
        rank: rank at the link's start.
        pair: tiers of the link's ends.
    """
    if injection.tiers is None:
        return injection.rank == rank
    return sorted(injection.tiers) == sorted(pair)


def _draw_transfers(spec: TraceSpec, rng: np.random.Generator, ring: FloatArray) -> FloatArray:
    """Return the seconds of broadcast and all-reduce after the last arrival, [S, 2]."""
    world = ring.shape[1]
    # The slowest link of a ring determines the duration of a collective.
    slowest = ring.min(axis=1)
    sent_bits = np.array([spec.buffer_bytes, 2 * (world - 1) / world * spec.gradient_bytes]) * 8
    shape = (spec.steps, 2)
    noise = np.exp(spec.noise.transfer_sigma * rng.standard_normal(shape)) * _draw_spikes(
        rng, shape, spec.noise.spike
    )
    seconds: FloatArray = (sent_bits[None, :] / (slowest[:, None] * 1e6) + 0.002) * noise
    return seconds


def _schedule_steps(
    spec: TraceSpec, rng: np.random.Generator, work: FloatArray, transfer: FloatArray
) -> tuple[FloatArray, FloatArray, dict[int, tuple[FloatArray, FloatArray]]]:
    """Return start and end of every slot, [S, W, 8], and the times of all evaluations."""
    start, end = np.empty_like(work), np.empty_like(work)
    now = np.zeros(work.shape[1])
    evaluations: dict[int, tuple[FloatArray, FloatArray]] = {}
    for step in range(spec.steps):
        for slot in range(len(SLOT_PHASES)):
            start[step, :, slot] = now
            if slot == GRADIENT_SLOT:
                now = np.full_like(now, now.max() + transfer[step, 1])
            elif slot == BUFFER_SLOT:
                # The root of a broadcast does not wait for the other ranks.
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
