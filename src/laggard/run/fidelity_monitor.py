"""Monitoring of the emulation while a training, or a user's own program, runs on it."""

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
    """Thread that samples the emulation every second; a context manager around the monitored work.

    Args:
        continuum: the monitored continuum.
        rates: highest rate that each link has at any time, in virtual Mbit/s.
        dilation: dilation between real and virtual time.
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
        self._thread = threading.Thread(target=self._run, name="laggard-fidelity", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_event.set()
        self._thread.join()
        # A last sample covers the time since the thread's last one.
        self._monitor.add(self._sample())

    def violations(self, zero_ns: int, end_ns: int | None = None) -> tuple[TimedViolation, ...]:
        """Return all violations with their times; call it after the context manager has ended.

        Args:
            zero_ns: CLOCK_MONOTONIC of time zero.
            end_ns: CLOCK_MONOTONIC of the end, if it was before the end of the monitoring.

        Raises:
            EmulationError: the monitoring itself failed, so nothing is known.
        """
        self._require_running()
        return self._to_virtual_time(self._monitor.violations(end_ns), zero_ns)

    def known(self, zero_ns: int) -> tuple[TimedViolation, ...]:
        """Return the violations known so far; it may be called during the monitoring.

        Arguments and exceptions are those of `violations`.
        """
        self._require_running()
        return self._to_virtual_time(self._known, zero_ns)

    def poll_new(self, zero_ns: int) -> tuple[TimedViolation, ...]:
        """Return the violations that no earlier call returned.

        A violation that continues is returned once.
        """
        known = self.known(zero_ns)
        new_violations = tuple(
            each for each in known if _get_violation_key(each.violation) not in self._reported
        )
        self._reported |= {_get_violation_key(each.violation) for each in new_violations}
        return new_violations

    def _require_running(self) -> None:
        if self._failure is not None:
            raise EmulationError(
                "the fidelity monitor failed, so it is unknown whether the emulation was exact:"
                f" {self._failure} — run again, and report a bug if it happens again"
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
                # Samples that were missed while the machine was busy are not taken in a burst.
                due_s = max(due_s + _SAMPLE_INTERVAL_S, time.monotonic())
        # An exception ends this thread; `violations` raises it again in the caller's thread.
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
