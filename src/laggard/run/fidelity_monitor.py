"""Watches the emulation while training, or what a user brings, runs on it, and says where it
slipped.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from laggard.core.errors import EmulationError, FidelityError
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.compute.measure import tolerance
from laggard.network_emulation.dynamics import EventRecord
from laggard.network_emulation.fidelity.monitor import (
    CHANGE_LATE_S,
    WINDOW_S,
    FidelityMonitor,
    FidelitySample,
    FidelityViolation,
    Limits,
    describe,
)
from laggard.network_emulation.fidelity.sampling import take_sample
from laggard.network_emulation.link_plan import Pair
from laggard.run.continuum import Continuum

_SAMPLE_INTERVAL_S = 1.0
_MAX_LISTED = 12


@dataclass(frozen=True)
class TimedViolation:
    """A slip between two moments, in virtual seconds after time zero (of a training, its first-step
    barrier).
    """

    violation: FidelityViolation
    first_s: float
    last_s: float


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
        """What of it was not there at the last call: a slip that goes on is told once."""
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
        except Exception as error:  # noqa: BLE001 - it ends this thread, and `violations` raises it in the caller's
            self._failure = error

    def _sample(self) -> FidelitySample:
        links, shares = self._continuum.links, self._continuum.shares
        health = links.health()
        sample = take_sample(set(shares.cpus.values()), shares)
        return replace(sample, late=health.late, refused=health.refused, carried=health.carried)


def find_late_changes(
    events: Sequence[EventRecord], zero_ns: int, dilation: Dilation, end_ns: int | None = None
) -> tuple[TimedViolation, ...]:
    """The changes of hosts and links that took effect much later than they were asked for.

    Args:
        events: as they were applied.
        zero_ns: CLOCK_MONOTONIC of time zero.
        dilation: between real and virtual time.
        end_ns: of the end: what was asked for after it changed nothing.
    """
    end_s = math.inf if end_ns is None else dilation.virtual_s((end_ns - zero_ns) / 1e9)
    late: dict[tuple[str, float], float] = {}
    for event in events:
        where = f"{event.src} -> {event.dst}" if event.dst else event.src
        if event.asked_s < end_s and event.effective_s - event.asked_s > CHANGE_LATE_S:
            late[where, event.asked_s] = max(
                event.effective_s, late.get((where, event.asked_s), 0.0)
            )

    def at_ns(virtual_s: float) -> int:
        return zero_ns + round(dilation.real_s(virtual_s) * 1e9)

    return tuple(
        TimedViolation(
            FidelityViolation(
                "change late", where, at_ns(asked_s), at_ns(effective_s), effective_s - asked_s
            ),
            asked_s,
            effective_s,
        )
        for (where, asked_s), effective_s in late.items()
    )


def require_no_violations(
    folder: Path, violations: Sequence[TimedViolation], activity: str = "training ran"
) -> None:
    """Put `guard.json` down.

    Args:
        folder: of the run.
        violations: all of them.
        activity: what went on while they were watched for.

    Raises:
        FidelityError: the emulation slipped.
    """
    (folder / "guard.json").write_text(json.dumps(to_violation_rows(violations), indent=1) + "\n")
    if not violations:
        return
    lines = [f"  {format_violation(each)}" for each in violations[:_MAX_LISTED]]
    more = (
        [f"  and {len(violations) - _MAX_LISTED} more, in guard.json"]
        if len(violations) > _MAX_LISTED
        else []
    )
    opening = (
        f"the emulation slipped while {activity}, so this is not the continuum that was asked for"
        " — run it again while nothing else uses the machine:"
    )
    raise FidelityError("\n".join((opening, *lines, *more)))


def to_violation_rows(violations: Sequence[TimedViolation]) -> list[dict[str, str | float]]:
    """Slips as JSON."""
    return [
        {
            "kind": each.violation.kind,
            "where": each.violation.where,
            "first_s": round(each.first_s, 3),
            "last_s": round(each.last_s, 3),
            "size": round(each.violation.size, 4),
            "text": describe(each.violation),
        }
        for each in violations
    ]


def format_violation(each: TimedViolation) -> str:
    """When and where, on one line."""
    return f"{each.first_s:.1f} to {each.last_s:.1f} s: {describe(each.violation)}"


def _get_violation_key(violation: FidelityViolation) -> tuple[str, str, int]:
    """What stays of a slip while it goes on."""
    return violation.kind, violation.where, violation.first_ns


def _compute_limits(
    continuum: Continuum, rates: Mapping[Pair, float], dilation: Dilation
) -> Limits:
    late_ms = dilation.real_ms(continuum.tolerance.rtt_ms)
    return Limits(
        late_ns=late_ms * 1e6,
        compute=tolerance(continuum.shares.mechanism),
        window=math.ceil(dilation.real_s(WINDOW_S)),
        rates={pair: dilation.real_mbps(rate_mbps) for pair, rate_mbps in rates.items()},
    )
