"""Warnings about hosts that this machine cannot emulate exactly."""

from __future__ import annotations

from collections import Counter

from laggard.network_emulation.compute.cpu_plan import plan_cpus, usable_cores
from laggard.scenario.load import Scenario
from laggard.scenario.run_plan import count_reserved_cores

LEAST_REAL_SHARE = 0.004
"""Smallest part of a core that was ever verified, rounded down (`benchmarks/hundred_hosts.md`)."""


def list_emulation_limits(
    scenario: Scenario, cores: int | None = None, dilation: float | None = None
) -> tuple[str, ...]:
    """Return a warning if the hosts' parts of a core are too small to be held exactly.

    Args:
        scenario: loaded scenario.
        cores: number of cores of the machine; None for this one.
        dilation: dilation that the user chose; None for the smallest that fits.

    Raises:
        InputError: the chosen dilation is too small for the hosts.
    """
    numbers = usable_cores() if cores is None else tuple(range(cores))
    plan = plan_cpus(
        scenario.peak_shares, numbers, count_reserved_cores(scenario, len(numbers)), dilation
    )
    small = [
        name
        for name, share in scenario.peak_shares.items()
        if share / plan.dilation < LEAST_REAL_SHARE
    ]
    if not small:
        return ()
    layers = Counter(host.layer for host in scenario.hosts if host.name in set(small))
    hosts = ", ".join(f"{count} of {layer}" for layer, count in layers.items())
    percent = 100 * min(scenario.peak_shares[name] for name in small) / plan.dilation
    message = (
        f"{len(small)} hosts ({hosts}) get {percent:.2g} % of a core on this machine with"
        f" {len(numbers)} cores, in a run {plan.dilation:.0f} times slower than real time; less"
        f" than {100 * LEAST_REAL_SHARE:g} % may fail the verification — use fewer hosts, or a"
        " machine with more cores"
    )
    return (message,)
