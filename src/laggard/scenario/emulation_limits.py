"""Warnings about what this machine cannot emulate exactly, or leaves out."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from laggard.core.virtual_time import Dilation
from laggard.layers_services.e2clab.manager_support import LOCAL
from laggard.layers_services.e2clab.managers import manager_problems
from laggard.layers_services.e2clab.services import service_warnings
from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
from laggard.network_emulation.fidelity.link_tasks import (
    TCP_LARGEST_BYTES,
    choose_representatives,
    estimate_duration_s,
)
from laggard.scenario.load import Scenario
from laggard.scenario.run_plan import count_reserved_cores

_LONG_S = 60.0
LARGEST_PIPE_MBPS = 500.0
"""Largest real rate that was held over a long way (`benchmarks/extreme_links.md`)."""

LEAST_REAL_SHARE = 0.004
"""Smallest part of a core that was ever verified, rounded down (`benchmarks/hundred_hosts.md`)."""


def list_emulation_limits(
    scenario: Scenario, cores: int | None = None, dilation: float | None = None
) -> tuple[str, ...]:
    """Return warnings about features of E2Clab, small parts of a core, and long verification.

    Args:
        scenario: loaded scenario.
        cores: number of cores of the machine; None for this one.
        dilation: dilation that the user chose; None for the smallest that fits.

    Raises:
        InputError: the chosen dilation is too small for the hosts.
    """
    numbers = usable_cores() if cores is None else tuple(range(cores))
    plan = plan_cpus(
        scenario.peak_shares,
        numbers,
        count_reserved_cores(scenario, len(numbers)),
        dilation,
        scenario.share_kind,
    )
    small = [
        name
        for name, share in scenario.peak_shares.items()
        if share / plan.dilation < LEAST_REAL_SHARE
    ]
    return (
        *_find_ignored_features(scenario),
        *_find_small_shares(scenario, plan.dilation, numbers, small),
        *_find_long_checks(scenario, plan.dilation),
        *_find_large_pipes(scenario, plan.dilation),
    )


def _find_ignored_features(scenario: Scenario) -> tuple[str, ...]:
    """Return warnings about E2Clab's features that this machine leaves out."""
    source = scenario.sources.layers_services
    services = service_warnings(scenario.layers, run_plugins=False, source=source)
    return tuple(
        str(problem) for problem in (*services, *manager_problems(scenario.layers, LOCAL, source))
    )


def _find_long_checks(scenario: Scenario, dilation: float) -> tuple[str, ...]:
    """Return a warning if the links take more than a minute to verify."""
    duration_s = estimate_duration_s(scenario.links, Dilation(dilation))
    if duration_s <= _LONG_S:
        return ()
    message = (
        f"it takes about {duration_s:.0f} s to verify the links, because packets take that long on"
        " the slowest ones — raise their rates or lower their delays if this is too long"
    )
    return (message,)


def _find_large_pipes(scenario: Scenario, dilation: float) -> tuple[str, ...]:
    """Return a warning about fast links over ways that are too long for the userspace emulator."""
    heavy = [
        task
        for task in choose_representatives(scenario.links)
        if task.pipe_bytes > TCP_LARGEST_BYTES
        and (task.there.rate_mbps or 0.0) / dilation > LARGEST_PIPE_MBPS
    ]
    if not heavy:
        return ()
    worst = max(heavy, key=lambda task: task.there.rate_mbps or 0.0)
    rate_mbps = worst.there.rate_mbps or 0.0
    message = (
        f"{worst.pair[0]} to {worst.pair[1]}: without netem, {rate_mbps:g} Mbit/s over a round trip"
        f" of {worst.rtt_ms:g} ms may fail the verification, because more than"
        f" {LARGEST_PIPE_MBPS:g} Mbit/s were never held over such a way — lower the rate, or run"
        f" with --dilation {math.ceil(rate_mbps / LARGEST_PIPE_MBPS)}"
    )
    return (message,)


def _find_small_shares(
    scenario: Scenario, dilation: float, cores: Sequence[int], small: Sequence[str]
) -> tuple[str, ...]:
    if not small:
        return ()
    layers = Counter(host.layer for host in scenario.hosts if host.name in set(small))
    hosts = ", ".join(f"{count} of {layer}" for layer, count in layers.items())
    percent = 100 * min(scenario.peak_shares[name] for name in small) / dilation
    message = (
        f"{len(small)} hosts ({hosts}) get {percent:.2g} % of a core on this machine with"
        f" {len(cores)} cores, in a run {dilation:.0f} times slower than real time; less"
        f" than {100 * LEAST_REAL_SHARE:g} % may fail the verification — use fewer hosts, or a"
        " machine with more cores"
    )
    return (message,)
