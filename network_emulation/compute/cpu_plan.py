"""Plan of CPU cores: the core of every host, and the dilation that the continuum needs for it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.core.errors import InputError
from laggard.network_emulation.dilation import ShareKind, best_placement

_ROUNDING = 1e-9
"""Relative difference below which a given dilation counts as equal to the needed one."""


@dataclass(frozen=True)
class CpuPlan:
    """Core of every host, and the dilation under which the cores can serve all hosts.

    Attributes:
        cpus: core of every host.
        dilation: D >= 1; a host's real share is its virtual share / D.
    """

    cpus: Mapping[str, int]
    dilation: float


def usable_cores() -> tuple[int, ...]:
    """Return the numbers of the cores that this process may run on."""
    return tuple(sorted(os.sched_getaffinity(0)))


def plan_cpus(
    shares: Mapping[str, float],
    cores: Sequence[int],
    reserve: float,
    dilation: float | None = None,
    kind: ShareKind = ShareKind.SPEED,
) -> CpuPlan:
    """Place every host on one core.

    Args:
        shares: virtual share of every host in cores, above 0 and at most 1: the largest during the
            run.
        cores: numbers of the cores that may be used.
        reserve: cores to keep free for the link emulator, the controller and the measurements.
        dilation: a fixed D; None selects the smallest that fits.
        kind: what the shares count.

    Raises:
        InputError: if `dilation` is below what the shares need on these cores.
    """
    placement, least = best_placement(shares, len(cores), reserve, kind)
    if dilation is not None and dilation < least * (1 - _ROUNDING):
        raise InputError(
            f"dilation {dilation:g} is too low: shares with a sum of {sum(shares.values()):.3g}"
            f" cores need a dilation of at least {least:.4g} on {len(cores)} cores, {reserve:g} of"
            " them reserved — use `auto`, lower the cpu shares or use fewer hosts"
        )
    cpus = {host: cores[i] for i, hosts in enumerate(placement) for host in hosts}
    return CpuPlan({host: cpus[host] for host in shares}, least if dilation is None else dilation)
