"""Which core every host computes on, and how much slower than real time the whole continuum has to
run for that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.core.errors import InputError
from laggard.network_emulation.dilation import best_placement

_ROUNDING = 1e-9


@dataclass(frozen=True)
class CpuPlan:
    """A core for every host, and the dilation under which it can serve them.

    Attributes:
        cpus: the core of every host.
        dilation: D >= 1; the host's real share is its virtual one / D.
    """

    cpus: Mapping[str, int]
    dilation: float


def usable_cores() -> tuple[int, ...]:
    """The cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def plan_cpus(
    shares: Mapping[str, float], cores: Sequence[int], reserve: float, dilation: float | None = None
) -> CpuPlan:
    """Place every host on one core.

    Args:
        shares: speed of every host in cores, virtual, above 0 and at most 1: the largest it has
            during the run.
        cores: the cores that may be used, by number.
        reserve: cores to keep free for the link emulator, the controller and the measurements.
        dilation: a fixed D; None takes the smallest that fits.

    Raises:
        InputError: `dilation` is below what the shares need on these cores.
    """
    placement, least = best_placement(shares, len(cores), reserve)
    if dilation is not None and dilation < least * (1 - _ROUNDING):
        raise InputError(
            f"dilation {dilation:g}: shares that add up to {sum(shares.values()):.3g} cores need a"
            f" dilation of at least {least:.4g} on {len(cores)} cores of which {reserve:g} are kept"
            " free — use `auto`, lower the cpu shares or take fewer hosts"
        )
    cpus = {host: cores[i] for i, hosts in enumerate(placement) for host in hosts}
    return CpuPlan({host: cpus[host] for host in shares}, least if dilation is None else dilation)
