"""Fidelity check of CPU shares: probes compute in the hosts, as their workers will.

The measured quantity is a host's slowdown against a whole core in virtual time: wall time divided
by CPU time of phases of one length, divided by the dilation. All hosts are measured at once,
because they will also compute at once.
"""

from __future__ import annotations

import os
import pickle
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe

from laggard.core import linux
from laggard.core.errors import EmulationError
from laggard.core.run_schema import FidelityCheck
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute.controller import Mechanism, ShareController
from laggard.network_emulation.compute.phases import (
    PhaseSet,
    Timing,
    expected_s,
    lengthen_phases,
    plan_probes,
    run_phases,
)
from laggard.network_emulation.forked import end_companion, fork_companion

QUOTA_TOLERANCE = 0.05
"""Relative error allowed when the kernel stops hosts (`cgroup-quota`)."""

STOP_SIGNAL_TOLERANCE = 0.15
"""Relative error allowed when an ordinary user's signals stop hosts (`stop-signal`)."""

ROUNDS = 3
"""Largest number of measurements. A miss is measured again, for 1.5 s and then for 3 s. It
counts only if all its measurements together are out of tolerance."""

_SMALL_SHARE = 0.1
"""Largest share that can be verified while other processes use the cores."""
_BESIDE_LOAD = 0.5
"""Largest sum of such shares on one core."""

_PATIENCE_S = 60.0
_PATIENCE_FACTOR = 10.0


def get_tolerance(mechanism: Mechanism) -> float:
    """Return the relative error allowed for a mechanism."""
    return QUOTA_TOLERANCE if mechanism == "cgroup-quota" else STOP_SIGNAL_TOLERANCE


@dataclass
class _Measured:
    phases: PhaseSet
    timing: Timing
    rounds: int = 1


def can_verify_on_busy_cores(shares: Mapping[str, float], cpus: Mapping[str, int]) -> bool:
    """Return whether shares can be verified while other processes use the cores.

    The hosts then need at most half of each core, and each host little of it. Their control groups
    outweigh other processes, so they get this part. A ledger makes up for the time that a host
    waits for its core.

    Args:
        shares: real (dilated) share of every host.
        cpus: core of every host.
    """
    loads: dict[int, float] = defaultdict(float)
    for host, share in shares.items():
        loads[cpus[host]] += share
    return max(shares.values(), default=0.0) <= _SMALL_SHARE and all(
        load <= _BESIDE_LOAD for load in loads.values()
    )


def verify_shares(
    shares: Mapping[str, float],
    controller: ShareController,
    dilation: Dilation,
    seed: int = 1,
    before_retry: Callable[[], object] | None = None,
) -> tuple[FidelityCheck, ...]:
    """Measure the speed of every host, with phases of 1, 10 and 100 ms.

    Args:
        shares: requested real (dilated) share of every host.
        controller: controller that holds the shares; its hosts must be idle.
        dilation: conversion between real and virtual time.
        seed: seed of the gaps between phases.
        before_retry: function that is called before a miss is measured again, and returns when no
            other process of the run uses the cores; None if none does.

    Returns:
        Three checks of kind `cpu` per host, or one if many hosts have the same share (see
            `plan_probes`). The value is the slowdown against a whole core, in virtual time.

    Raises:
        EmulationError: if a probe died.
    """
    allowed = get_tolerance(controller.mechanism)
    whole = plan_probes(shares)
    plans: Mapping[str, tuple[PhaseSet, ...]] = whole
    found: dict[tuple[str, int], _Measured] = {}
    for attempt in range(ROUNDS):
        for host, timings in _run_probes(plans, controller, seed + attempt).items():
            _record_timings(found, host, plans[host], timings)
        missed = {
            key for key, each in found.items() if _compute_error(each, shares[key[0]]) > allowed
        }
        if not missed or attempt + 1 == ROUNDS:
            break
        if before_retry is not None:
            before_retry()
        plans = _plan_retries(missed, whole, shares, attempt + 1)
    return tuple(
        _build_share_check(host, shares[host], each, dilation, allowed)
        for (host, _), each in sorted(found.items())
    )


def _plan_retries(
    missed: AbstractSet[tuple[str, int]],
    plans: Mapping[str, tuple[PhaseSet, ...]],
    shares: Mapping[str, float],
    times: int,
) -> dict[str, tuple[PhaseSet, ...]]:
    """Return longer series of the phases that missed; longer series have a smaller error.

    Other phases of the same hosts get a count of 0.
    """
    hosts = sorted({host for host, _ in missed})
    return {
        host: tuple(
            lengthen_phases(phases, shares[host], times)
            if (host, i) in missed
            else replace(phases, count=0)
            for i, phases in enumerate(plans[host])
        )
        for host in hosts
    }


def _record_timings(
    found: dict[tuple[str, int], _Measured],
    host: str,
    plan: Sequence[PhaseSet],
    timings: Sequence[Timing],
) -> None:
    for i, (phases, timing) in enumerate(zip(plan, timings, strict=True)):
        if phases.count == 0:
            continue
        before = found.get((host, i))
        if before is None:
            found[host, i] = _Measured(phases, timing)
        else:
            # Rounds are added up: a series counts as a miss only if all of them together miss.
            count = before.phases.count + phases.count
            found[host, i] = _Measured(
                replace(phases, count=count), before.timing + timing, before.rounds + 1
            )


def _compute_error(measured: _Measured, share: float) -> float:
    return abs(measured.timing.slowdown * share - 1)


def _build_share_check(
    host: str, share: float, measured: _Measured, dilation: Dilation, allowed: float
) -> FidelityCheck:
    requested = dilation.virtual_s(1 / share)
    phases = measured.phases
    again = f", measured {measured.rounds} times" if measured.rounds > 1 else ""
    return FidelityCheck(
        kind="cpu",
        src=host,
        dst=None,
        requested=requested,
        measured=dilation.virtual_s(measured.timing.slowdown),
        unit="x",
        tolerance=allowed * requested,
        ok=_compute_error(measured, share) <= allowed,
        detail=f"{phases.count} phases of {phases.cpu_ms:g} ms{again}",
    )


def _run_probes(
    plans: Mapping[str, Sequence[PhaseSet]], controller: ShareController, seed: int
) -> Mapping[str, tuple[Timing, ...]]:
    probes: dict[str, tuple[int, Connection]] = {}
    try:
        patience_s = _PATIENCE_S
        for number, (host, plan) in enumerate(plans.items()):
            patience_s = max(
                patience_s, _PATIENCE_FACTOR * expected_s(plan, controller.shares[host])
            )
            probes[host] = _start_probe(plan, controller.shares[host], seed * 1000 + number)
        for host, (pid, connection) in probes.items():
            _receive_result(host, connection, patience_s)
            # Attach only a ready and idle probe: waiting for a core while it starts up would
            # otherwise count in its favor.
            controller.attach(host, pid)
        for _, connection in probes.values():
            connection.send_bytes(b"go")
        return {
            # Results of our own forks.
            host: pickle.loads(_receive_result(host, each, patience_s))  # noqa: S301
            for host, (_, each) in probes.items()
        }
    finally:
        for pid, connection in probes.values():
            connection.close()
            end_companion(pid)


def _start_probe(plan: Sequence[PhaseSet], share: float, seed: int) -> tuple[int, Connection]:
    ours, theirs = Pipe()
    pid = fork_companion("laggard-probe", lambda: _run_probe(plan, share, seed, ours, theirs))
    theirs.close()
    return pid, ours


def _run_probe(
    plan: Sequence[PhaseSet], share: float, seed: int, unrelated: Connection, connection: Connection
) -> int:
    unrelated.close()
    os.setsid()  # like a worker: the kernel's autogroups weigh each as a session
    linux.minimize_timer_slack()
    chance = random.Random(seed)  # noqa: S311 - gaps, not secrets
    with suppress(EOFError):
        connection.send_bytes(b"ready")
        connection.recv_bytes()
        timings = tuple(run_phases(phases, chance, share) for phases in plan)
        connection.send_bytes(pickle.dumps(timings))
    os.close(connection.fileno())
    return 0


def _receive_result(host: str, connection: Connection, patience_s: float) -> bytes:
    try:
        if not connection.poll(patience_s):
            raise EmulationError(
                f"{host}: the measurement of its CPU share exceeded {patience_s:g} s"
            )
        return connection.recv_bytes()
    except EOFError as error:
        message = (
            f"{host}: the probe that measures its CPU share died; see its error output on stderr"
        )
        raise EmulationError(message) from error
