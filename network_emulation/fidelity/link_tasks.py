"""Plan of a fidelity check of links: what is measured, on which pairs, and with which probes; pure.

For every pair of tiers with a constraint of its own, one pair of hosts represents all.
`choose_representatives` spreads these pairs over the hosts, so that they can be measured at the
same time. Round trips are cheap, so they are also sampled on further pairs.

Flows that share an access link or a bottleneck never run at the same time (`plan_rounds`). That
applies to both directions, because acknowledgements travel too. A round also has no more flows
than the machine can carry.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.probes.datagrams import DATAGRAM_WIRE_BYTES, LossProbe
from laggard.network_emulation.fidelity.probes.echo import LARGE_BYTES, EchoProbe
from laggard.network_emulation.fidelity.probes.stream import RateProbe
from laggard.network_emulation.jitter import SPREAD
from laggard.network_emulation.link_plan import (
    Constraint,
    LinkPlan,
    Pair,
    dilate_constraint,
    tier_pairs,
)
from laggard.network_emulation.loss_bursts import variance_ratio

RTT_PAIRS = 24
"""Number of pairs whose round trip is measured, unless more tiers need one."""
HOST_MBPS = 1000.0
"""Largest sum of rates at one host in one round; a single flow may exceed it."""
ROUND_MBPS = (1200.0, 300.0, 0.0)
"""Largest sum of rates in one round, by attempt. A slow machine carries few flows at a time,
which is no fault of the links."""
_ECHOES = 48
_ECHO_SPACING_MS = 12.0
_ECHO_TOTAL_MS = 1200.0
_JITTERY_TOTAL_MS = 3000.0
_ECHO_HEADERS = 42
"""Bytes of the headers of Ethernet, IPv4 and ICMP."""
_LONGEST_ECHO_MS = 1000.0
"""Time of a large echo's bytes in both directions above which it is made smaller."""
_LEAST_LARGE_BYTES = 80
_LOSS_PACKETS = (400, 4000)
_LOSS_S = 0.5
_LOSS_LONGER = 4.0
_LOSS_PER_S = 16_000
_LOSS_LOAD = 0.25
"""Part of a link's rate that the datagrams of a loss check use."""
_TCP_LEAST_MBPS = 0.1
"""Rate below which a full-size packet takes about as long as TCP waits before it retransmits."""
TCP_LARGEST_BYTES = 16e6
"""Bytes on their way above which a single loss stops a TCP flow for long."""
TCP_LONGEST_RTT_MS = 1000.0
"""Real round trip above which slow start and its settling would take longer than ten seconds."""


@dataclass(frozen=True)
class Task:
    """Ordered pair to measure, and its requested constraints, in virtual units."""

    pair: Pair
    there: Constraint
    back: Constraint

    @property
    def rtt_ms(self) -> float:
        """Return the round trip of an empty packet, without jitter."""
        return self.there.delay_ms + self.back.delay_ms

    @property
    def pipe_bytes(self) -> float:
        """Return the bytes on the way in a round trip at the full rate, in any dilation."""
        return 125.0 * (self.there.rate_mbps or 0.0) * self.rtt_ms

    @property
    def has_rate(self) -> bool:
        """Return whether a rate is requested and can be measured: something arrives."""
        return self.there.rate_mbps is not None and self.there.loss_percent < 100

    @property
    def has_round_trip(self) -> bool:
        """Return whether an echo can come back."""
        return max(self.there.loss_percent, self.back.loss_percent) < 100


def choose_representatives(plan: LinkPlan) -> tuple[Task, ...]:
    """Return one ordered pair for every group of equal pairs.

    The reverse of a pair chosen before is preferred, else the pair whose hosts are used least.
    """
    used: Counter[str] = Counter()
    chosen: dict[Pair, None] = {}
    for group in tier_pairs(plan):
        members = set(group.pairs)
        reverse = next(((d, s) for s, d in chosen if (d, s) in members), None)
        pair = reverse or min(group.pairs, key=lambda pair: used[pair[0]] + used[pair[1]])
        if reverse is None:
            used.update(pair)
        chosen[pair] = None
    return tuple(_create_task(plan, pair) for pair in chosen)


def choose_round_trips(plan: LinkPlan, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return the tasks whose round trips to measure, without those from which nothing returns."""
    return tuple(task for task in sample_round_trips(plan, tasks) if task.has_round_trip)


def sample_round_trips(plan: LinkPlan, tasks: Sequence[Task]) -> tuple[Task, ...]:
    """Return the tasks whose round trips to measure.

    These are one direction of each task, and further pairs of each group in turn.
    """
    groups = [group.pairs for group in tier_pairs(plan)]
    turns = [
        pairs[i]
        for i in range(max(map(len, groups), default=0))
        for pairs in groups
        if i < len(pairs)
    ]
    sampled: dict[frozenset[str], Task] = {}
    for task in tasks:
        sampled.setdefault(frozenset(task.pair), task)
    for pair in turns:
        if len(sampled) >= RTT_PAIRS:
            break
        sampled.setdefault(frozenset(pair), _create_task(plan, pair))
    return tuple(sampled.values())


def estimate_duration_s(plan: LinkPlan, dilation: Dilation) -> float:
    """Return the real seconds that `verify_links` takes if every link is as requested."""
    tasks = choose_representatives(plan)
    probes = [echo_probe(task, dilation) for task in choose_round_trips(plan, tasks)]
    echoes_s = max(
        (probe.count * probe.spacing_ms / 1e3 + probe.patience_ms / 1e3 for probe in probes),
        default=0.0,
    )
    rounds = plan_rounds(plan, [task for task in tasks if task.has_rate], dilation, ROUND_MBPS[0])
    rates_s = sum(max(rate_probe(task, dilation).longest_s for task in chosen) for chosen in rounds)
    return echoes_s + rates_s


def plan_rounds(
    plan: LinkPlan, tasks: Sequence[Task], dilation: Dilation, round_mbps: float
) -> tuple[tuple[Task, ...], ...]:
    """Return rounds of tasks whose flows do not disturb each other.

    The method is greedy coloring, fastest first; the rates of a round add up to at most
    `round_mbps` (real).
    """
    rounds: list[list[Task]] = []
    for task in sorted(tasks, key=lambda task: -(task.there.rate_mbps or 0.0)):
        fitting = (
            chosen for chosen in rounds if _fits_round(plan, task, chosen, dilation, round_mbps)
        )
        home = next(fitting, None)
        if home is None:
            rounds.append([task])
        else:
            home.append(task)
    return tuple(map(tuple, rounds))


def links_used(plan: LinkPlan, pair: Pair) -> frozenset[str]:
    """Return the names of the links that a flow crosses, acknowledgements included.

    These are the pair, access links and shared bottlenecks.
    """
    ends = sorted(pair)
    used = {
        f"pair {ends[0]} {ends[1]}",
        *(f"access {host}" for host in pair if host in plan.access),
    }
    shared = (plan.shared_by(direction) for direction in (pair, (pair[1], pair[0])))
    return frozenset(used | {f"shared {link.name}" for link in shared if link is not None})


def _fits_round(
    plan: LinkPlan, task: Task, chosen: Sequence[Task], dilation: Dilation, round_mbps: float
) -> bool:
    load: Counter[str] = Counter()
    for each in (*chosen, task):
        rate = math.ceil(dilation.real_mbps(each.there.rate_mbps or 0.0))
        # The empty name counts the load of the whole machine.
        load.update({each.pair[0]: rate, each.pair[1]: rate, "": rate})
    machine = load.pop("")
    if machine > round_mbps or max(load.values()) > HOST_MBPS:
        return False
    return not any(links_used(plan, task.pair) & links_used(plan, other.pair) for other in chosen)


def _create_task(plan: LinkPlan, pair: Pair) -> Task:
    return Task(pair, plan.expected(*pair), plan.expected(pair[1], pair[0]))


def echo_probe(task: Task, dilation: Dilation) -> EchoProbe:
    """Return echoes with a spacing at which they find the links idle.

    The spacing is at least twice the time that a large echo takes in both directions, and the
    spread of the delays.
    """
    real = [dilate_constraint(constraint, dilation) for constraint in (task.there, task.back)]
    # Milliseconds of one byte, there and back.
    byte_ms = sum(8e-3 / each.rate_mbps for each in real if each.rate_mbps is not None)
    large_bytes = LARGE_BYTES
    if byte_ms * (LARGE_BYTES + _ECHO_HEADERS) > _LONGEST_ECHO_MS:
        large_bytes = max(_LEAST_LARGE_BYTES, int(_LONGEST_ECHO_MS / byte_ms) - _ECHO_HEADERS) & ~1
    bytes_ms = byte_ms * (large_bytes + _ECHO_HEADERS)
    spread_ms = math.hypot(*(SPREAD[each.distribution] * each.jitter_ms for each in real))
    spacing_ms = max(_ECHO_SPACING_MS, 2 * bytes_ms, spread_ms)
    total_ms = _JITTERY_TOTAL_MS if spread_ms else _ECHO_TOTAL_MS
    least = 2 if bytes_ms > _LONGEST_ECHO_MS else 4
    count = 2 * max(least, min(_ECHOES, int(total_ms / spacing_ms)) // 2)
    patience_ms = sum(each.longest_delay_ms for each in real) + bytes_ms
    return EchoProbe(*task.pair, count, spacing_ms, patience_ms + 50.0, large_bytes)


def rate_probe(task: Task, dilation: Dilation) -> RateProbe:
    """Return a TCP flow, or a UDP flow if packets are lost or delayed irregularly."""
    real = dilate_constraint(task.there, dilation)
    assert real.rate_mbps is not None
    rtt_ms = dilation.real_ms(task.rtt_ms)
    loss = real.loss_percent / 100
    return RateProbe(
        *task.pair,
        real.rate_mbps,
        real.delay_ms,
        rtt_ms,
        transport_for(task, dilation),
        loss,
        real.jitter_ms,
    )


def transport_for(task: Task, dilation: Dilation) -> Literal["tcp", "udp"]:
    """Return the kind of flow that measures a rate.

    It is TCP if neither direction has loss or jitter, no packet takes as long as TCP waits before
    it retransmits, the dilated round trip is short enough for TCP's slow start, and the pipe is not
    so large that a single loss stops the flow for long.
    """
    rough = any(each.loss_percent or each.jitter_ms for each in (task.there, task.back))
    slow = task.there.rate_mbps is not None and task.there.rate_mbps < _TCP_LEAST_MBPS
    distant = dilation.real_ms(task.rtt_ms) > TCP_LONGEST_RTT_MS
    large = task.pipe_bytes > TCP_LARGEST_BYTES
    return "udp" if rough or slow or distant or large else "tcp"


def loss_probe(task: Task, dilation: Dilation, probes: int) -> LossProbe:
    """Return enough datagrams for a standard error of a tenth of the loss, within limits.

    The limits are half a second at a quarter of the rate. For losses in bursts, whose number
    varies more, the time is up to two seconds.

    Args:
        task: a pair with loss.
        dilation: dilation of the run.
        probes: number of probes that run at the same time; together they send at most as much as
            the machine forwards easily.
    """
    real = dilate_constraint(task.there, dilation)
    fraction = real.loss_percent / 100
    ratio = variance_ratio(fraction, real.burst_packets, _LOSS_PACKETS[1])
    longer = min(max(ratio, 1.0), _LOSS_LONGER)
    wanted = min(
        max(100 * ratio * (1 - fraction) / fraction, _LOSS_PACKETS[0]), _LOSS_PACKETS[1] * longer
    )
    fastest = (
        math.inf
        if real.rate_mbps is None
        else _LOSS_LOAD * real.rate_mbps * 1.25e5 / DATAGRAM_WIRE_BYTES
    )
    per_s = min(wanted / (_LOSS_S * longer), fastest, _LOSS_PER_S / probes)
    count = math.ceil(max(100.0, min(wanted, per_s * _LOSS_S * longer)))
    return LossProbe(*task.pair, count, per_s, real.longest_delay_ms)
