"""Watches the emulation while training runs, and says afterwards where it slipped."""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from laggard.errors import EmulationError, FidelityError
from laggard.experiments.continuum import Continuum
from laggard.network_emulation.compute.measure import tolerance
from laggard.network_emulation.guard import WINDOW_S, Guard, Limits, Sample, Slip, describe
from laggard.network_emulation.links import Pair
from laggard.virtual_time import Dilation

_EVERY_S = 1.0
_MOST_TOLD = 12
_STAT = Path("/proc/stat")


@dataclass(frozen=True)
class TimedSlip:
    """A slip between two moments, in virtual seconds after the first-step barrier."""

    slip: Slip
    first_s: float
    last_s: float


class Watch:
    """A thread that takes a sample every second; use it as a context manager around the training.

    Args:
        continuum: what is watched.
        rates: the highest rate, in virtual Mbit/s, that each link ever has.
        dilation: between real and virtual time.
    """

    def __init__(self, continuum: Continuum, rates: Mapping[Pair, float], dilation: Dilation) -> None:
        self._continuum = continuum
        self._dilation = dilation
        self._guard = Guard(_limits(continuum, rates, dilation))
        self._failure: Exception | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="laggard-guard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._guard.enter(self._sample())

    def slips(self, zero_ns: int) -> tuple[TimedSlip, ...]:
        """What slipped, and when.

        Args:
            zero_ns: CLOCK_MONOTONIC of the first-step barrier.

        Raises:
            EmulationError: the watching itself failed, so that nothing is known.
        """
        if self._failure is not None:
            raise EmulationError(f"the emulation could not be watched: {self._failure}") from self._failure
        return tuple(
            TimedSlip(slip, self._virtual_s(slip.first_ns - zero_ns), self._virtual_s(slip.last_ns - zero_ns))
            for slip in self._guard.slips()
        )

    def _virtual_s(self, real_ns: int) -> float:
        return max(0.0, self._dilation.virtual_s(real_ns / 1e9))

    def _run(self) -> None:
        try:
            due_s = time.monotonic()
            while not self._stopping.wait(due_s - time.monotonic()):
                self._guard.enter(self._sample())
                due_s = max(due_s + _EVERY_S, time.monotonic())
        except Exception as error:  # noqa: BLE001 - it ends this thread, and `slips` raises it in the caller's
            self._failure = error

    def _sample(self) -> Sample:
        links, shares = self._continuum.links, self._continuum.shares
        health = links.health()
        return Sample(
            at_ns=time.monotonic_ns(),
            wall_ns=time.time_ns(),
            awake_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            stolen_ns=_stolen_ns(set(shares.cpus.values())),
            hosts=shares.uses(),
            shares=shares.shares,
            late=health.late,
            refused=health.refused,
            carried=health.carried,
        )


def require_faithful(folder: Path, slips: Sequence[TimedSlip]) -> None:
    """Put `guard.json` down.

    Raises:
        FidelityError: the emulation slipped.
    """
    rows = [
        {
            "kind": each.slip.kind,
            "where": each.slip.where,
            "first_s": round(each.first_s, 3),
            "last_s": round(each.last_s, 3),
            "size": round(each.slip.size, 4),
            "text": describe(each.slip),
        }
        for each in slips
    ]
    (folder / "guard.json").write_text(json.dumps(rows, indent=1) + "\n")
    if not slips:
        return
    lines = [f"  {each.first_s:.1f} to {each.last_s:.1f} s: {describe(each.slip)}" for each in slips[:_MOST_TOLD]]
    more = [f"  and {len(slips) - _MOST_TOLD} more, in guard.json"] if len(slips) > _MOST_TOLD else []
    opening = (
        "the emulation slipped while training ran, so this is not the continuum that was asked for"
        " — run it again while nothing else uses the machine:"
    )
    raise FidelityError("\n".join((opening, *lines, *more)))


def _limits(continuum: Continuum, rates: Mapping[Pair, float], dilation: Dilation) -> Limits:
    late_ms = dilation.real_ms(continuum.tolerance.rtt_ms)
    return Limits(
        late_ns=late_ms * 1e6,
        compute=tolerance(continuum.shares.mechanism),
        window=math.ceil(dilation.real_s(WINDOW_S)),
        rates={pair: dilation.real_mbps(rate_mbps) for pair, rate_mbps in rates.items()},
    )


def _stolen_ns(cores: set[int]) -> Mapping[int, int]:
    """What the hypervisor has taken of each core so far (proc_stat(5): the eighth number)."""
    ticks_ns = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    stolen = {}
    for line in _STAT.read_text(encoding="ascii").splitlines():
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit() and int(name[3:]) in cores:
            stolen[int(name[3:])] = int(numbers[7]) * ticks_ns
    return stolen
