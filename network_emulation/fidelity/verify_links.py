"""Fidelity check of links: measured against requested values before training, in virtual units.

`link_tasks.py` plans the measurements.

    rtt    median of empty packets on idle links while every core is busy, against the sum of
           both directions' delays
    rate   link rate implied by the goodput of a single flow, against the slowest rate on its
           path
    loss   if requested, by counting datagrams

Failed checks of a round with many flows are repeated with few flows, then alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.fidelity.link_tasks import (
    ROUND_MBPS,
    Task,
    choose_representatives,
    choose_round_trips,
    echo_probe,
    loss_probe,
    plan_rounds,
    rate_probe,
    transport_for,
)
from laggard.network_emulation.fidelity.measure import (
    LossCount,
    ProbeEndpoint,
    measure_loss,
    measure_rate,
    measure_rtt,
)
from laggard.network_emulation.jitter import delay_grid_ms, median_of_sum_ms
from laggard.network_emulation.link_plan import (
    Constraint,
    LinkPlan,
    Pair,
)
from laggard.network_emulation.loss_bursts import variance_ratio

ATTEMPTS = len(ROUND_MBPS)
"""Number of measurements after which a quantity counts as out of tolerance."""

_LOSS_SIGMAS = 4.0
"""Standard errors of the count that a loss check allows in addition to the tolerance."""


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
    sampled = choose_round_trips(plan, tasks)
    limited = [task for task in tasks if task.has_rate]
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
