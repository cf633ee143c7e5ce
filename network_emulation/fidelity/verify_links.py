"""Fidelity check of links: measured against requested values before training, in virtual units.

For every pair of tiers with a constraint of its own, one pair of hosts represents all.
`choose_representatives` spreads these pairs over the hosts, so that they can be measured at the
same time. Round trips are cheap, so they are also sampled on further pairs.

    rtt    median of empty packets on idle links while every core is busy, against the sum of
           both directions' delays
    rate   link rate implied by the goodput of a single flow, against the slowest rate on its
           path
    loss   if requested, by counting datagrams

Flows that share an access link or a bottleneck never run at the same time (`plan_rounds`). That
applies to both directions, because acknowledgements travel too. A round also has no more flows
than the machine can carry. Failed checks of a round with many flows are repeated with few flows,
then alone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.measure import (
    EchoProbe,
    LossCount,
    LossProbe,
    ProbeEndpoint,
    RateProbe,
    measure_loss,
    measure_rate,
    measure_rtt,
)
from laggard.network_emulation.fidelity.probes.datagrams import DATAGRAM_WIRE_BYTES
from laggard.network_emulation.fidelity.probes.echo import LARGE_BYTES
from laggard.network_emulation.jitter import SPREAD, delay_grid_ms, median_of_sum_ms
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

ATTEMPTS = len(ROUND_MBPS)
"""Number of measurements after which a quantity counts as out of tolerance."""

_ECHOES = 48
_ECHO_SPACING_MS = 12.0
_ECHO_TOTAL_MS = 1200.0
_JITTERY_TOTAL_MS = 3000.0
_LOSS_PACKETS = (400, 4000)
_LOSS_S = 0.5
_LOSS_LONGER = 4.0
_LOSS_PER_S = 16_000
_LOSS_LOAD = 0.25
"""Part of a link's rate that the datagrams of a loss check use."""
_LOSS_SIGMAS = 4.0
"""Standard errors of the count that a loss check allows in addition to the tolerance."""
_TCP_LEAST_MBPS = 0.1
"""Rate below which a full-size packet takes about as long as TCP waits before it retransmits."""
TCP_LONGEST_RTT_MS = 1000.0
"""Real round trip above which slow start and its settling would take longer than ten seconds."""


@dataclass(frozen=True)
class Tolerance:
    """Largest allowed difference between measured and requested links.

    Attributes:
        name: name of the tolerance, for reports.
        rtt_ms: allowed error of a round trip in virtual ms.
        rtt_fraction: allowed relative error of a round trip; the larger of both counts.
        rate_fraction: allowed relative error of a rate.
        loss_fraction: allowed relative error of a loss.
    """

    name: str
    rtt_ms: float
    rtt_fraction: float
    rate_fraction: float
    loss_fraction: float


REALTIME = Tolerance(
    "real-time", rtt_ms=0.5, rtt_fraction=0.02, rate_fraction=0.05, loss_fraction=0.10
)
"""Tolerance of netem, whose timers the kernel runs, and of an emulator with real-time priority."""

ORDINARY = Tolerance(
    "ordinary", rtt_ms=5.0, rtt_fraction=0.05, rate_fraction=0.10, loss_fraction=0.10
)
"""Tolerance of an emulator without real-time priority, which competes with other programs for
the cores. With only the probes' own burners, round trips were wrong by up to 1 ms; with other
programs (load 7 to 9 on two cores), by up to 3.7 ms in one series."""


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


def verify_links(
    plan: LinkPlan,
    namespaces: Mapping[str, Path],
    dilation: Dilation,
    tolerance: Tolerance = REALTIME,
) -> tuple[FidelityCheck, ...]:
    """Measure every constrained pair of tiers.

    It takes two to three seconds, longer for round trips above 100 ms (real), and up to three times
    that if links fail.

    Args:
        plan: the requested links in *virtual* units; hosts carry their addresses.
        namespaces: network namespace of every host, by name.
        dilation: dilation of the run; the emulated links are `dilate_links(plan, dilation)`.
        tolerance: `REALTIME`, or `ORDINARY` for a userspace emulator that is not real-time.

    Returns:
        A check per representative pair and quantity. A failed check raises nothing.

    Raises:
        EmulationError: if the measurement itself failed.
    """
    hosts = {host.name: ProbeEndpoint(namespaces[host.name], host.address) for host in plan.hosts}
    tasks = choose_representatives(plan)
    sampled = sample_round_trips(plan, tasks)
    # A link that loses everything has no rate to measure.
    limited = [
        task for task in tasks if task.there.rate_mbps is not None and task.there.loss_percent < 100
    ]
    lossy = [task for task in tasks if task.there.loss_percent > 0]
    return (
        *measure_patiently(
            sampled, lambda some, _: _verify_round_trips(some, hosts, dilation, tolerance)
        ),
        *measure_patiently(
            limited,
            lambda some, attempt: _verify_rates(
                plan_rounds(plan, some, dilation, ROUND_MBPS[attempt]), hosts, dilation, tolerance
            ),
        ),
        *measure_patiently(lossy, lambda some, _: _verify_losses(some, hosts, dilation, tolerance)),
    )


def measure_patiently(
    tasks: Sequence[Task], measure: Callable[[Sequence[Task], int], Sequence[FidelityCheck]]
) -> tuple[FidelityCheck, ...]:
    """Return the checks of all tasks, in their order.

    Failed checks are repeated, up to `ATTEMPTS` measurements in all. A wrong link stays wrong,
    while another load on the machine passes. The last measurement counts, and its detail shows its
    number.

    Args:
        tasks: tasks to measure.
        measure: function that measures some of them; it also receives the attempt, from 0.
    """
    checks: dict[Pair, FidelityCheck] = {}
    failed = list(tasks)
    for attempt in range(ATTEMPTS):
        for check in measure(failed, attempt) if failed else ():
            note = f"; measured {attempt + 1} times" if attempt else ""
            assert check.dst is not None
            checks[check.src, check.dst] = check.model_copy(update={"detail": check.detail + note})
        failed = [task for task in tasks if not checks[task.pair].ok]
    return tuple(checks[task.pair] for task in tasks)


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


def _verify_round_trips(
    tasks: Sequence[Task],
    hosts: Mapping[str, ProbeEndpoint],
    dilation: Dilation,
    tolerance: Tolerance,
) -> list[FidelityCheck]:
    measured = measure_rtt([echo_probe(task, dilation) for task in tasks], hosts)
    return [rtt_check(task, measured[task.pair], dilation, tolerance) for task in tasks]


def rtt_check(
    task: Task, real_ms: float | None, dilation: Dilation, tolerance: Tolerance
) -> FidelityCheck:
    """Return the check of a measured round trip (real ms; None if no echo came back)."""
    asked_ms, by_chance_ms = median_round_trip_ms(task, dilation)
    allowed = max(tolerance.rtt_ms, tolerance.rtt_fraction * asked_ms) + by_chance_ms
    detail = f"empty packet, every core busy; {tolerance.name} tolerance"
    # A negative value fails the check (see `_build_check`).
    value = -1.0 if real_ms is None else real_ms / dilation.factor
    shown = "no echo came back" if real_ms is None else detail
    return _build_check("rtt", task, asked_ms, value, "ms", allowed, shown)


def echo_probe(task: Task, dilation: Dilation) -> EchoProbe:
    """Return echoes with a spacing at which they find the links idle.

    The spacing is at least twice the time that a large echo takes in both directions, and the
    spread of the delays.
    """
    real = [dilate_constraint(constraint, dilation) for constraint in (task.there, task.back)]
    # The headers of Ethernet, IPv4 and ICMP have 42 bytes.
    bits = (LARGE_BYTES + 42) * 8
    bytes_ms = sum(bits / (each.rate_mbps * 1e3) for each in real if each.rate_mbps is not None)
    spread_ms = math.hypot(*(SPREAD[each.distribution] * each.jitter_ms for each in real))
    spacing_ms = max(_ECHO_SPACING_MS, 2 * bytes_ms, spread_ms)
    total_ms = _JITTERY_TOTAL_MS if spread_ms else _ECHO_TOTAL_MS
    count = 2 * max(4, min(_ECHOES, int(total_ms / spacing_ms)) // 2)
    patience_ms = sum(each.longest_delay_ms for each in real) + bytes_ms
    return EchoProbe(*task.pair, count, spacing_ms, patience_ms + 50.0)


def median_round_trip_ms(task: Task, dilation: Dilation) -> tuple[float, float]:
    """Return the median round trip of an empty packet, and its error by jitter, in virtual ms.

    The error is the largest that jitter alone may cause in the median of the echoes.
    """
    grids = [
        delay_grid_ms(each.delay_ms, each.jitter_ms, each.distribution)
        for each in (task.there, task.back)
    ]
    return median_of_sum_ms(grids[0], grids[1], echo_probe(task, dilation).count // 2)


def _verify_rates(
    rounds: Sequence[Sequence[Task]],
    hosts: Mapping[str, ProbeEndpoint],
    dilation: Dilation,
    tolerance: Tolerance,
) -> list[FidelityCheck]:
    checks: list[FidelityCheck] = []
    for chosen in rounds:
        probes = {task.pair: rate_probe(task, dilation) for task in chosen}
        measured = measure_rate(list(probes.values()), hosts)
        checks += [rate_check(task, measured[task.pair], dilation, tolerance) for task in chosen]
    return checks


def rate_check(
    task: Task, real_mbps: float, dilation: Dilation, tolerance: Tolerance, transport: str = ""
) -> FidelityCheck:
    """Return the check of a measured rate (real Mbit/s on the wire).

    `transport` is the kind of flow that measured it; empty means `transport_for`.
    """
    assert task.there.rate_mbps is not None
    allowed = tolerance.rate_fraction * task.there.rate_mbps
    detail = (
        f"link rate from the goodput of one {transport or transport_for(task, dilation)} flow;"
        f" {tolerance.name} tolerance"
    )
    return _build_check(
        "rate", task, task.there.rate_mbps, real_mbps * dilation.factor, "Mbit/s", allowed, detail
    )


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
    it retransmits, and the dilated round trip is short enough for TCP's slow start.
    """
    rough = any(each.loss_percent or each.jitter_ms for each in (task.there, task.back))
    slow = task.there.rate_mbps is not None and task.there.rate_mbps < _TCP_LEAST_MBPS
    distant = dilation.real_ms(task.rtt_ms) > TCP_LONGEST_RTT_MS
    return "udp" if rough or slow or distant else "tcp"


def _verify_losses(
    tasks: Sequence[Task],
    hosts: Mapping[str, ProbeEndpoint],
    dilation: Dilation,
    tolerance: Tolerance,
) -> list[FidelityCheck]:
    measured = measure_loss([loss_probe(task, dilation, len(tasks)) for task in tasks], hosts)
    return [loss_check(task, measured[task.pair], tolerance) for task in tasks]


def loss_check(task: Task, count: LossCount, tolerance: Tolerance) -> FidelityCheck:
    """Return the check of counted datagrams."""
    requested = task.there.loss_percent
    allowed = tolerance.loss_fraction * requested + loss_error_percent(task.there, count)
    bursts = (
        f", in bursts of {task.there.burst_packets:g} on average"
        if task.there.burst_packets > 1
        else ""
    )
    detail = f"{count.lost} of {count.sent} datagrams lost{bursts}"
    percent = 100.0 * count.lost / max(1, count.sent)
    return _build_check("loss", task, requested, percent, "%", allowed, detail)


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


def loss_error_percent(link: Constraint, count: LossCount) -> float:
    """Return four standard errors of a counted loss, in percent.

    The variance is the binomial one, multiplied by the increase that bursts cause.
    """
    fraction, sent = link.loss_percent / 100, max(1, count.sent)
    variance = fraction * (1 - fraction) * variance_ratio(fraction, link.burst_packets, sent) / sent
    return 100 * _LOSS_SIGMAS * math.sqrt(variance)


def _build_check(
    kind: str,
    task: Task,
    requested: float,
    measured: float,
    unit: str,
    tolerance: float,
    detail: str,
) -> FidelityCheck:
    src, dst = task.pair
    ok = measured >= 0 and abs(measured - requested) <= tolerance
    return FidelityCheck.model_validate(
        {
            "kind": kind,
            "src": src,
            "dst": dst,
            "requested": requested,
            "measured": measured,
            "unit": unit,
            "tolerance": tolerance,
            "ok": ok,
            "detail": detail,
        }
    )
