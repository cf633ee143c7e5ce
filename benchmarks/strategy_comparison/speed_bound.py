"""How fast any strategy could train on a continuum, and how fast DDP's all-reduce does: from
shares, links, and the cost of a step.

Nobody is faster than a scheme whose workers never wait and whose transfers are all hidden behind
computing. If it takes the same samples, in gradients of as many samples each as DDP's (so a step's
part that does not grow with its samples is paid as often), then its rate is

    R_best = n * sum_i E[s_i] / c

with n samples and c CPU seconds at full speed in a worker's step, and s_i the share of host i, a
stationary process: with an event of probability p = for / every that sets it to s', E[s] = (1 - p)
s + p s'. How the work is dealt out does not matter, nor when.

DDP takes a step of W * n samples in max_i c / s_i, then the all-reduce. States last longer than
steps, so its rate is the mean over time of what it is in each state:

    R_ddp = E[ W n / (max_i c / s_i + A) ]

Hosts are independent of one another and of the links, so that max_i has the product of their
distributions; links of one entry change together. A is gloo's ring (Patarasuk and Yuan, J. Parallel
Distrib. Comput. 2009): S bytes in W chunks, each sent on 2 (W - 1) times, a link busy with one
chunk at a time. On equal links A = 2 (W - 1) (L + S / (W B)). That gradients are sent while later
ones are still computed is left out, and so is what the network itself does beside serialising and
delaying.

So no strategy that takes the samples that DDP takes is more than R_best / R_ddp times as fast. One
that needs fewer samples may be.
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
"""Of a TCP segment in a full-size packet, its options left out."""

MOST_LINK_ENTRIES = 12


@dataclass(frozen=True)
class TimeShare:
    """A value, and the part of the time that it holds."""

    value: float
    part: float


TimeShares = tuple[TimeShare, ...]


@dataclass(frozen=True)
class RingLink:
    """A link of the ring: one-way delay in ms, and the rate in Mbit/s of link-layer bytes; None is
    as fast as the machine.
    """

    delay_ms: float = 0.0
    rate_mbps: float | None = None

    def busy_s(self, size_bytes: float) -> float:
        """Seconds that sending so many bytes of payload takes it."""
        framed_bits = 8 * size_bytes * PACKET_BYTES / _SEGMENT_BYTES
        return 0.0 if self.rate_mbps is None else framed_bits / (self.rate_mbps * 1e6)


@dataclass(frozen=True)
class SpeedBound:
    """Samples a second, at most, and of DDP.

    Attributes:
        best_samples_per_s: nobody is faster.
        allreduce_samples_per_s: what DDP should reach.
    """

    best_samples_per_s: float
    allreduce_samples_per_s: float

    @property
    def ratio(self) -> float:
        """How many times as fast as DDP a strategy can be that takes as many samples."""
        return self.best_samples_per_s / self.allreduce_samples_per_s


def compute_bound(scenario: Scenario, step_cpu_s: float, model_bytes: int) -> SpeedBound:
    """The bound of a scenario and DDP's own rate there.

    Args:
        scenario: whose dynamic entries are random ones.
        step_cpu_s: CPU seconds at full speed of a worker's step with its part of the batch.
        model_bytes: of the gradients.

    Raises:
        InputError: an entry happens at a time of its own or follows a trace, so that the process is
            not stationary; links are shared; or several workers are on one host.
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
    """R_best, of steps of so many samples that take a worker so many CPU seconds at full speed."""
    return samples * sum(map(compute_mean, shares)) / step_cpu_s


def allreduce_samples_per_s(
    shares: Sequence[TimeShares], rings: TimeShares, step_cpu_s: float, batch_size: float
) -> float:
    """R_ddp, of steps of `batch_size` samples; `rings` are seconds of the all-reduce."""
    slowest = slowest_step(shares, step_cpu_s)
    return sum(
        compute.part * ring.part * batch_size / (compute.value + ring.value)
        for compute, ring in product(slowest, rings)
    )


def compute_mean(levels: TimeShares) -> float:
    """Over time."""
    return sum(level.value * level.part for level in levels)


def overlay_events(base: float, events: Sequence[TimeShare]) -> TimeShares:
    """What a share is over time, where independent events each set it for their part of the time;
    of several at once, the least.
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
    """How long the slowest of independent workers computes: P(max <= t) is the product of all
    P(step <= t).
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
    """A: from when all workers have their gradients until all have the sum.

    Args:
        hops: the link from each worker to the next, the last one's to the first; seconds are 0 for
            fewer than two.
        size_bytes: of the gradients.
    """
    workers = len(hops)
    if workers < 2:
        return 0.0
    busy_s = [hop.busy_s(size_bytes / workers) for hop in hops]
    arrived_s, free_s = [0.0] * workers, [0.0] * workers
    for _ in range(2 * (workers - 1)):
        free_s = [max(arrived_s[i], free_s[i]) + busy_s[i] for i in range(workers)]
        arrived_s = [free_s[i - 1] + hops[i - 1].delay_ms / 1e3 for i in range(workers)]
    return max(arrived_s)


def host_levels(scenario: Scenario) -> tuple[TimeShares, ...]:
    """The share of every worker's host over time, in rank order."""
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
    """Seconds of the all-reduce over time, one for every combination of the entries under way."""
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
    """The ring's links in order; gloo's ranks send to the rank before."""
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
            f"{scenario.name}: an event at a time of its own has no mean over time — use `random:`"
            " entries"
        )
    if any(event.profile is not None for event in links) or len(links) > MOST_LINK_ENTRIES:
        raise InputError(
            f"{scenario.name}: at most {MOST_LINK_ENTRIES} random entries of links, without"
            " profiles — write delay and rate"
        )
    if scenario.links.shared or scenario.links.access:
        raise InputError(
            f"{scenario.name}: links that several pairs share are not reckoned with — use rates of"
            " pairs"
        )
    if len({host.name for host in scenario.ranks}) < len(scenario.ranks):
        raise InputError(
            f"{scenario.name}: several workers share a host's processor — use per_host: 1"
        )
