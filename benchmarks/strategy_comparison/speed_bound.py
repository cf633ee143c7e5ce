"""Bound on the training speed of any strategy on a continuum, and predicted speed of DDP.

Both follow from CPU shares, links, and the cost of a step. No strategy is faster than a scheme
whose workers never wait and whose transfers are completely hidden behind computing. Assume that it
takes the same samples, in gradients of as many samples each as DDP's, so that the fixed cost of a
step is paid as often. Its rate is then

    R_best = n * sum_i E[s_i] / c

with n samples and c CPU seconds at full speed in a worker's step. s_i is the share of host i, a
stationary process: with an event of probability p = for / every that sets it to s', E[s] = (1 - p)
s + p s'. The distribution of the work over workers and time does not matter.

DDP takes a step of W * n samples in max_i c / s_i, followed by the all-reduce. States last longer
than steps, so its rate is the mean over time of the rates in all states:

    R_ddp = E[ W n / (max_i c / s_i + A) ]

Hosts are independent of each other and of the links, so the distribution of max_i is the product
of theirs. Links of one entry change together. A is the duration of gloo's ring (Patarasuk and
Yuan, J. Parallel Distrib. Comput. 2009): S bytes in W chunks, each sent 2 (W - 1) times, a link
busy with one chunk at a time. On equal links A = 2 (W - 1) (L + S / (W B)). Two effects are
neglected: the overlap of sending with the backward pass, and everything that the network does
besides serialization and delay.

So a strategy that takes the samples that DDP takes is at most R_best / R_ddp times as fast. A
strategy that needs fewer samples may be faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from laggard.core.errors import InputError
from laggard.core.hosts import select_hosts
from laggard.network_emulation.link_plan import PACKET_BYTES, Constraint, Pair
from laggard.network_emulation.model import RandomHostEvent, RandomLinkEvent
from laggard.scenario.load import Scenario

_SEGMENT_BYTES = 1448
"""Payload of a TCP segment in a full-size packet, without its options."""

# Every subset of the entries is evaluated: 2 to the power of 12.
MOST_LINK_ENTRIES = 12


@dataclass(frozen=True)
class TimeShare:
    """Value, and the fraction of the time in which it applies."""

    value: float
    part: float


TimeShares = tuple[TimeShare, ...]


@dataclass(frozen=True)
class RingLink:
    """Link of the ring.

    Attributes:
        delay_ms: one-way delay.
        rate_mbps: rate of link-layer bytes; None means unlimited.
    """

    delay_ms: float = 0.0
    rate_mbps: float | None = None

    def busy_s(self, size_bytes: float) -> float:
        """Return the seconds that sending so many bytes of payload occupies the link."""
        framed_bits = 8 * size_bytes * PACKET_BYTES / _SEGMENT_BYTES
        return 0.0 if self.rate_mbps is None else framed_bits / (self.rate_mbps * 1e6)


@dataclass(frozen=True)
class SpeedBound:
    """Largest possible rate and predicted rate of DDP.

    Attributes:
        best_samples_per_s: rate that no strategy exceeds.
        allreduce_samples_per_s: rate that DDP should reach.
    """

    best_samples_per_s: float
    allreduce_samples_per_s: float

    @property
    def ratio(self) -> float:
        """Largest possible speed relative to DDP of a strategy that takes as many samples."""
        return self.best_samples_per_s / self.allreduce_samples_per_s


def compute_bound(scenario: Scenario, step_cpu_s: float, model_bytes: int) -> SpeedBound:
    """Compute the bound of a scenario and DDP's rate there.

    Args:
        scenario: scenario whose dynamic entries are all random.
        step_cpu_s: CPU seconds at full speed of a worker's step with its part of the batch.
        model_bytes: bytes of the gradients.

    Raises:
        InputError: an entry has a fixed time or follows a trace, so the process is not stationary;
            links are shared; or several workers are on one host.
    """
    _require_stationary(scenario)
    shares = host_levels(scenario)
    rings = ring_levels(scenario, model_bytes)
    batch = scenario.workload.batch_size
    workers = len(scenario.ranks)
    return SpeedBound(
        best_samples_per_s(shares, step_cpu_s, batch / workers),
        allreduce_samples_per_s(shares, rings, step_cpu_s, batch),
    )


def best_samples_per_s(shares: Sequence[TimeShares], step_cpu_s: float, samples: float) -> float:
    """Return R_best.

    Args:
        shares: share of each host over time.
        step_cpu_s: CPU seconds of a worker's step at full speed.
        samples: samples of a worker's step.
    """
    return samples * sum(map(compute_mean, shares)) / step_cpu_s


def allreduce_samples_per_s(
    shares: Sequence[TimeShares], rings: TimeShares, step_cpu_s: float, batch_size: float
) -> float:
    """Return R_ddp.

    Args:
        shares: share of each host over time.
        rings: seconds of the all-reduce over time.
        step_cpu_s: CPU seconds of a worker's step at full speed.
        batch_size: samples of the whole batch.
    """
    slowest = slowest_step(shares, step_cpu_s)
    return sum(
        compute.part * ring.part * batch_size / (compute.value + ring.value)
        for compute, ring in product(slowest, rings)
    )


def compute_mean(levels: TimeShares) -> float:
    """Return the mean value over time."""
    return sum(level.value * level.part for level in levels)


def overlay_events(base: float, events: Sequence[TimeShare]) -> TimeShares:
    """Return a share over time under independent events.

    Each event sets the share for its fraction of the time; of several at once, the least value
    applies.
    """
    parts: dict[float, float] = {}
    for chosen in product(*(((event, True), (event, False)) for event in events)):
        part = 1.0
        active = [event.value for event, on in chosen if on]
        for event, on in chosen:
            part *= event.part if on else 1 - event.part
        value = min(active, default=base)
        parts[value] = parts.get(value, 0.0) + part
    return tuple(TimeShare(value, part) for value, part in sorted(parts.items()))


def slowest_step(shares: Sequence[TimeShares], step_cpu_s: float) -> TimeShares:
    """Return the computing time of the slowest of independent workers over time.

    P(max <= t) is the product of all P(step <= t).
    """
    moments = sorted({step_cpu_s / level.value for levels in shares for level in levels})
    below, found = 0.0, []
    for moment in moments:
        until = 1.0
        for levels in shares:
            until *= sum(level.part for level in levels if step_cpu_s / level.value <= moment)
        if until > below:
            found.append(TimeShare(moment, until - below))
        below = until
    return tuple(found)


def ring_allreduce_s(hops: Sequence[RingLink], size_bytes: float) -> float:
    """Return A: seconds from the last worker's gradients until all workers have the sum.

    Args:
        hops: links from each worker to the next, and from the last to the first. The result is 0
            for fewer than two.
        size_bytes: bytes of the gradients.
    """
    workers = len(hops)
    if workers < 2:
        return 0.0
    busy_s = [hop.busy_s(size_bytes / workers) for hop in hops]
    arrived_s, free_s = [0.0] * workers, [0.0] * workers
    for _ in range(2 * (workers - 1)):
        # A chunk leaves when it has arrived and the link is free of the one before.
        free_s = [max(arrived_s[i], free_s[i]) + busy_s[i] for i in range(workers)]
        arrived_s = [free_s[i - 1] + hops[i - 1].delay_ms / 1e3 for i in range(workers)]
    return max(arrived_s)


def host_levels(scenario: Scenario) -> tuple[TimeShares, ...]:
    """Return the share of every worker's host over time, in rank order."""
    events: dict[str, list[TimeShare]] = {host.name: [] for host in scenario.hosts}
    for event in scenario.heterogeneity.events:
        if isinstance(event, RandomHostEvent) and event.cpu is not None:
            for host in select_hosts(event.hosts, scenario.hosts):
                events[host.name].append(
                    TimeShare(event.cpu, event.random.for_s / event.random.every_s)
                )
    return tuple(
        overlay_events(scenario.shares[host.name], events[host.name]) for host in scenario.ranks
    )


def ring_levels(scenario: Scenario, model_bytes: int) -> TimeShares:
    """Return the seconds of the all-reduce over time.

    There is one value for every combination of active entries.
    """
    entries = [
        event for event in scenario.heterogeneity.events if isinstance(event, RandomLinkEvent)
    ]
    found = []
    for active in product((False, True), repeat=len(entries)):
        part = 1.0
        for event, on in zip(entries, active, strict=True):
            p = event.random.for_s / event.random.every_s
            part *= p if on else 1 - p
        changed = [event for event, on in zip(entries, active, strict=True) if on]
        found.append(
            TimeShare(
                ring_allreduce_s(tuple(_list_ring_links(scenario, changed)), model_bytes), part
            )
        )
    return tuple(found)


def _list_ring_links(scenario: Scenario, changed: Sequence[RandomLinkEvent]) -> Iterator[RingLink]:
    """Yield the ring's links in order; gloo's ranks send to the previous rank."""
    overlay = _map_changes(scenario, changed)
    names = [host.name for host in reversed(scenario.ranks)]
    for pair in zip(names, [*names[1:], names[0]], strict=True):
        link = scenario.links.pairs.get(pair, Constraint())
        delays = [event.delay_ms for event in overlay.get(pair, ()) if event.delay_ms is not None]
        rates = [event.rate_mbps for event in overlay.get(pair, ()) if event.rate_mbps is not None]
        yield RingLink(max(delays, default=link.delay_ms), min(rates, default=link.rate_mbps))


def _map_changes(
    scenario: Scenario, changed: Sequence[RandomLinkEvent]
) -> Mapping[Pair, list[RandomLinkEvent]]:
    found: dict[Pair, list[RandomLinkEvent]] = {}
    for event in changed:
        for src in select_hosts(event.src, scenario.hosts):
            for dst in select_hosts(event.dst, scenario.hosts):
                found.setdefault((src.name, dst.name), []).append(event)
                if event.both_ways:
                    found.setdefault((dst.name, src.name), []).append(event)
    return found


def _require_stationary(scenario: Scenario) -> None:
    events = scenario.heterogeneity.events
    links = [event for event in events if isinstance(event, RandomLinkEvent)]
    if any(not isinstance(event, RandomHostEvent | RandomLinkEvent) for event in events):
        raise InputError(
            f"{scenario.name}: an event at a fixed time has no mean over time — use `random:`"
            " entries"
        )
    if any(event.profile is not None for event in links) or len(links) > MOST_LINK_ENTRIES:
        raise InputError(
            f"{scenario.name}: the bound supports at most {MOST_LINK_ENTRIES} random entries of"
            " links, without profiles — write delay and rate instead"
        )
    if scenario.links.shared or scenario.links.access:
        raise InputError(
            f"{scenario.name}: the bound does not support links that several pairs share — use"
            " rates of pairs"
        )
    if len({host.name for host in scenario.ranks}) < len(scenario.ranks):
        raise InputError(
            f"{scenario.name}: the bound does not support several workers on one host — use"
            " per_host: 1"
        )
