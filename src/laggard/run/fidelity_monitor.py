"""Watches the emulation while training, or what a user brings, runs on it, and says where it
slipped.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Self

from laggard.core.errors import EmulationError
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute.measure import get_tolerance
from laggard.network_emulation.fidelity.monitor import (
    WINDOW_S,
    FidelityMonitor,
    FidelitySample,
    FidelityViolation,
    Limits,
)
from laggard.network_emulation.fidelity.sampling import take_sample
from laggard.network_emulation.link_plan import Pair
from laggard.run.continuum import Continuum
from laggard.run_folder.fidelity_violations import TimedViolation, _get_violation_key

_SAMPLE_INTERVAL_S = 1.0


class FidelityMonitorThread:
    """A thread that takes a sample every second; use it as a context manager around what runs on
    the continuum.

    Args:
        continuum: what is watched.
        rates: the highest rate, in virtual Mbit/s, that each link ever has.
        dilation: between real and virtual time.
    """

    def __init__(
        self, continuum: Continuum, rates: Mapping[Pair, float], dilation: Dilation
    ) -> None:
        self._continuum = continuum
        self._dilation = dilation
        self._monitor = FidelityMonitor(_compute_limits(continuum, rates, dilation))
        self._known: tuple[FidelityViolation, ...] = ()
        self._reported: set[tuple[str, str, int]] = set()
        self._failure: Exception | None = None
        self._stop_event = threading.Event()
        self._thread = threading.Thread(target=self._run, name="laggard-guard", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        self._thread.join()
        self._monitor.add(self._sample())

    def violations(self, zero_ns: int, end_ns: int | None = None) -> tuple[TimedViolation, ...]:
        """What slipped, and when; to be asked at the end.

        Args:
            zero_ns: CLOCK_MONOTONIC of time zero.
            end_ns: of the end, where that was before the watching ended.

        Raises:
            EmulationError: the watching itself failed, so that nothing is known.
        """
        self._require_running()
        return self._to_virtual_time(self._monitor.violations(end_ns), zero_ns)

    def known(self, zero_ns: int) -> tuple[TimedViolation, ...]:
        """What is known to have slipped by now; may be asked meanwhile. Arguments and exceptions
        are those of `violations`.
        """
        self._require_running()
        return self._to_virtual_time(self._known, zero_ns)

    def poll_new(self, zero_ns: int) -> tuple[TimedViolation, ...]:
        """What of it was not there at the last call: a violation that goes on is told once."""
        known = self.known(zero_ns)
        new_violations = tuple(
            each for each in known if _get_violation_key(each.violation) not in self._reported
        )
        self._reported |= {_get_violation_key(each.violation) for each in new_violations}
        return new_violations

    def _require_running(self) -> None:
        if self._failure is not None:
            raise EmulationError(
                f"the emulation could not be watched: {self._failure}"
            ) from self._failure

    def _to_virtual_time(
        self, violations: Sequence[FidelityViolation], zero_ns: int
    ) -> tuple[TimedViolation, ...]:
        return tuple(
            TimedViolation(
                violation,
                self._virtual_s(violation.first_ns - zero_ns),
                self._virtual_s(violation.last_ns - zero_ns),
            )
            for violation in violations
        )

    def _virtual_s(self, real_ns: int) -> float:
        return max(0.0, self._dilation.virtual_s(real_ns / 1e9))

    def _run(self) -> None:
        try:
            due_s = time.monotonic()
            while not self._stop_event.wait(due_s - time.monotonic()):
                self._monitor.add(self._sample())
                self._known = self._monitor.known()
                due_s = max(due_s + _SAMPLE_INTERVAL_S, time.monotonic())
        # It ends this thread, and `violations` raises it in the caller's.
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _sample(self) -> FidelitySample:
        links, shares = self._continuum.links, self._continuum.shares
        health = links.health()
        sample = take_sample(set(shares.cpus.values()), shares)
        return replace(sample, late=health.late, refused=health.refused, carried=health.carried)


def _compute_limits(
    continuum: Continuum, rates: Mapping[Pair, float], dilation: Dilation
) -> Limits:
    late_ms = dilation.real_ms(continuum.tolerance.rtt_ms)
    return Limits(
        late_ns=late_ms * 1e6,
        compute=get_tolerance(continuum.shares.mechanism),
        window=math.ceil(dilation.real_s(WINDOW_S)),
        rates={pair: dilation.real_mbps(rate_mbps) for pair, rate_mbps in rates.items()},
    )
