"""Whether the emulated links are the ones that were asked for: measured before training, in virtual
units.

For every pair of tiers with a constraint of its own, one pair of hosts stands for all
(`choose_representatives` spreads them over the hosts, so that they can be measured at the same
time); round trips, which cost little, are also sampled on further pairs.

    rtt    median of empty packets on idle links while every core is busy, against the sum of both
           directions' delays
    rate   of a flow of its own, as the link rate that its goodput implies, against the slowest
           rate on
           its way
    loss   where asked for, by counting datagrams

Flows that share an access link or a bottleneck, in either direction since acknowledgements travel
too, never run at the same time (`plan_rounds`); nor do more flows than the machine would carry.
What a round of many flows missed is measured again with few, then alone.
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
"""Pairs whose round trip is measured, unless more tiers than that need one."""

HOST_MBPS = 1000.0
"""What flows of one round may ask of one host; a flow alone may ask for anything."""

ROUND_MBPS = (1200.0, 300.0, 0.0)
"""What they may ask of the machine together, by attempt: a slow one carries few at a time, which is
no fault of the links."""

ATTEMPTS = len(ROUND_MBPS)
"""How often a quantity is measured before it counts as out of tolerance."""

_ECHOES = 48
_ECHO_SPACING_MS = 12.0
_ECHO_TOTAL_MS = 1200.0
_JITTERY_TOTAL_MS = 3000.0
_LOSS_PACKETS = (400, 4000)
_LOSS_S = 0.5
_LOSS_LONGER = 4.0
_LOSS_PER_S = 16_000
_LOSS_LOAD = 0.25
_LOSS_SIGMAS = 4.0
_TCP_LEAST_MBPS = 0.1


@dataclass(frozen=True)
class Tolerance:
    """How far a measured link may be from what was asked for (rtt in virtual ms or as a fraction,
    whichever is more).
    """

    name: str
    rtt_ms: float
    rtt_fraction: float
    rate_fraction: float
    loss_fraction: float


REALTIME = Tolerance(
    "real-time", rtt_ms=0.5, rtt_fraction=0.02, rate_fraction=0.05, loss_fraction=0.10
)
"""For netem, whose timers the kernel runs, and for an emulator with real-time priority."""

ORDINARY = Tolerance(
    "ordinary", rtt_ms=5.0, rtt_fraction=0.05, rate_fraction=0.10, loss_fraction=0.10
)
"""For an emulator without real-time priority, which waits its turn among whatever else runs: with
nothing but the probes' own burners round trips were off by up to 1 ms, beside other programs (load
7 to 9 on two cores) by up to 3.7 ms in one series."""


@dataclass(frozen=True)
class Task:
    """An ordered pair to measure, and what it should be, in virtual units."""

    pair: Pair
    there: Constraint
    back: Constraint

    @property
    def rtt_ms(self) -> float:
        """Round trip of an empty packet, without jitter."""
        return self.there.delay_ms + self.back.delay_ms


def verify_links(
    plan: LinkPlan,
    namespaces: Mapping[str, Path],
    dilation: Dilation,
    tolerance: Tolerance = REALTIME,
) -> tuple[FidelityCheck, ...]:
    """Measure every constrained pair of tiers; takes two to three seconds, longer for round trips
    above 100 ms, and up to three times that where links are wrong.

    Args:
        plan: the links in *virtual* units, as asked for; hosts carry their addresses.
        namespaces: network namespace of every host, by name.
        dilation: of the run; the links that run are `dilate_links(plan, dilation)`.
        tolerance: `REALTIME`, or `ORDINARY` for a userspace emulator that is not real-time.

    Returns:
        A check per representative pair and quantity; nothing is raised for one that is not ok.

    Raises:
        EmulationError: measuring itself failed.
    """
    hosts = {host.name: ProbeEndpoint(namespaces[host.name], host.address) for host in plan.hosts}
    tasks = choose_representatives(plan)
    sampled = sample_round_trips(plan, tasks)
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
    """Checks of all tasks, in their order; what is out of tolerance is measured again, up to
    `ATTEMPTS` times in all.

    A link that is wrong stays wrong, while something else that kept the machine busy passes. The
    last measurement counts, and says which it was.

    Args:
        tasks: what to measure.
        measure: measures some of them; takes the attempt too, from 0.
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
    """One ordered pair for every group of alike ones: the reverse of one chosen before, or else
    that of the idlest hosts.
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
    """The tasks whose round trips to measure: one direction of each, and further pairs of each
    group in turn.
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
    """Rounds of tasks whose flows do not disturb each other (greedy colouring, fastest first),
    `round_mbps` (real) in all.
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
    """Names of the links that a flow, acknowledgements included, crosses: the pair, access links,
    shared bottlenecks.
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
    """What a measured round trip (real ms; None where no echo came back) says of a task."""
    asked_ms, by_chance_ms = median_round_trip_ms(task, dilation)
    allowed = max(tolerance.rtt_ms, tolerance.rtt_fraction * asked_ms) + by_chance_ms
    detail = f"empty packet, every core busy; {tolerance.name} tolerance"
    value = -1.0 if real_ms is None else real_ms / dilation.factor
    shown = "no echo came back" if real_ms is None else detail
    return _build_check("rtt", task, asked_ms, value, "ms", allowed, shown)


def echo_probe(task: Task, dilation: Dilation) -> EchoProbe:
    """Echoes far enough apart to find the links idle: twice the time that a large one takes both
    ways, and the spread of the delays.
    """
    real = [dilate_constraint(constraint, dilation) for constraint in (task.there, task.back)]
    bits = (LARGE_BYTES + 42) * 8
    bytes_ms = sum(bits / (each.rate_mbps * 1e3) for each in real if each.rate_mbps is not None)
    spread_ms = math.hypot(*(SPREAD[each.distribution] * each.jitter_ms for each in real))
    spacing_ms = max(_ECHO_SPACING_MS, 2 * bytes_ms, spread_ms)
    total_ms = _JITTERY_TOTAL_MS if spread_ms else _ECHO_TOTAL_MS
    count = 2 * max(4, min(_ECHOES, int(total_ms / spacing_ms)) // 2)
    patience_ms = sum(each.longest_delay_ms for each in real) + bytes_ms
    return EchoProbe(*task.pair, count, spacing_ms, patience_ms + 50.0)


def median_round_trip_ms(task: Task, dilation: Dilation) -> tuple[float, float]:
    """The median round trip of an empty packet, and what jitter alone may move that of the echoes
    by, in virtual ms.
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
    """What a rate (real Mbit/s on the wire) says of a task, measured by `transport_for` it unless
    another `transport` is named.
    """
    assert task.there.rate_mbps is not None
    allowed = tolerance.rate_fraction * task.there.rate_mbps
    detail = (
        f"link rate from the goodput of one {transport or transport_for(task)} flow;"
        f" {tolerance.name} tolerance"
    )
    return _build_check(
        "rate", task, task.there.rate_mbps, real_mbps * dilation.factor, "Mbit/s", allowed, detail
    )


def rate_probe(task: Task, dilation: Dilation) -> RateProbe:
    """A TCP flow, or UDP where packets get lost or jitter in either direction."""
    real = dilate_constraint(task.there, dilation)
    assert real.rate_mbps is not None
    rtt_ms = dilation.real_ms(task.rtt_ms)
    loss = real.loss_percent / 100
    return RateProbe(
        *task.pair, real.rate_mbps, real.delay_ms, rtt_ms, transport_for(task), loss, real.jitter_ms
    )


def transport_for(task: Task) -> Literal["tcp", "udp"]:
    """What to measure a rate with: TCP where nothing is lost or jitters in either direction, and no
    packet takes as long as TCP waits.
    """
    rough = any(each.loss_percent or each.jitter_ms for each in (task.there, task.back))
    slow = task.there.rate_mbps is not None and task.there.rate_mbps < _TCP_LEAST_MBPS
    return "udp" if rough or slow else "tcp"


def _verify_losses(
    tasks: Sequence[Task],
    hosts: Mapping[str, ProbeEndpoint],
    dilation: Dilation,
    tolerance: Tolerance,
) -> list[FidelityCheck]:
    measured = measure_loss([loss_probe(task, dilation, len(tasks)) for task in tasks], hosts)
    return [loss_check(task, measured[task.pair], tolerance) for task in tasks]


def loss_check(task: Task, count: LossCount, tolerance: Tolerance) -> FidelityCheck:
    """What counted datagrams say of a task."""
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
    """Datagrams for a standard error of a tenth of the loss, as far as half a second (for losses in
    bursts, whose number varies more, up to two) at a quarter of the rate allows.

    Args:
        task: a lossy pair.
        dilation: of the run.
        probes: how many run at the same time; together they send at most what the machine forwards
            with ease.
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
    """Four standard errors of a loss counted on so many packets, in percent: the binomial's, times
    what bursts add to its variance.
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
