"""Fidelity monitor: watches during training whether the emulation stays within its tolerances.

Once a second it receives a `FidelitySample` of values that cost nothing to read: the emulator's
lateness, the computing of hosts against their shares, the time that hosts were kept from their
cores, the time that the hypervisor took, the traffic of links, and three clocks. `FidelityMonitor`
compares the last few samples and reports when, where and how the emulation violated a tolerance.
One late packet, or a core missed for ten milliseconds, changes no step measurably. A violation
lasts. What recurs until it is a noticeable part of the whole run, but stays within the tolerance of
shares, is told and tolerated.

The end of training is known only afterwards. The stopping rule is tested by evaluating a model of
an earlier moment, while ranks go on, leave and tear down. `FidelityMonitor.violations` excludes
what happened after the end.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from laggard.network_emulation.compute.host_counters import HostUse
from laggard.network_emulation.compute.limiter import LONGEST_SLICE_NS
from laggard.network_emulation.compute.pulse import Pulse
from laggard.network_emulation.link_plan import Pair

ViolationKind = Literal[
    "emulator late",
    "frames refused",
    "rate exceeded",
    "cpu starved",
    "share exceeded",
    "cpu stolen",
    "machine suspended",
    "clock stepped",
    "event late",
]

WINDOW_S = 5.0
"""Virtual seconds of one window; its samples are compared together."""

STOOD_STILL_S = 1.0
"""Time without any progress from which the machine counts as suspended."""

CLOCK_SET_S = 0.1
"""Largest change of the wall clock, or of the time slept, against the steady clock between two
samples."""

STOLEN = 0.10
"""Part of a core's time in a window that the hypervisor may take; the CPU clocks of tasks may
count it as their own."""

LATE_PACKETS = 0.10
"""Part of a window's packets that may be later than the tolerance."""

FEWEST_PACKETS = 100
"""Packets of a window below which the emulator is not judged."""

REFUSED = 0.001
"""Part of a window's packets that a receiver's device may refuse."""

EXCEEDED = 0.05
"""Part by which a link may carry more than its rate in a window: packets that waited in a
device arrive in bursts."""

CHANGE_LATE_S = 1.0
"""Virtual seconds by which a change may take effect late."""

WHOLE_RUN = 0.01
"""Part of the whole run from which it is told that a host was kept from its core. No reported time
can be wrong by more than that part, even if all others waited for the host. Up to the tolerance of
shares it is a warning, since the kernel's own threads and the link emulator take up to 4 % of a
core on an otherwise idle machine."""

FEWEST_WINDOWS = 2
"""Number of windows that a run counts as at least: a shorter run is allowed a tenth of a
second, because an event that happened once has not recurred."""

_REMEMBERED = 10_000
"""Largest number of looks with violations that are kept for an end that becomes known later."""

_SLICES = 4
"""Slices of computing that a host may be ahead of its share."""
_BURST_BYTES = 1 << 17
"""Bytes that a link may carry above its rate in any window, for bursts."""
_NS = 1_000_000_000


@dataclass(frozen=True)
class FidelitySample:
    """State of an emulation at one moment, in real units; counts are since the emulation began.

    Attributes:
        at_ns: CLOCK_MONOTONIC.
        wall_ns: CLOCK_REALTIME.
        awake_ns: CLOCK_BOOTTIME, which continues while a machine sleeps.
        stolen_ns: time that the hypervisor took from every core.
        hosts: computing time of every host.
        shares: current share of every host.
        pulses: pulse of every limiter; empty if none is known.
        late: packets by the bit length of their lateness in ns; empty if the kernel sends them.
        refused: frames that a receiver's device did not accept.
        carried: bytes that every link has carried; empty if reading them is expensive.
    """

    at_ns: int
    wall_ns: int
    awake_ns: int
    stolen_ns: Mapping[int, int] = field(default_factory=dict)
    hosts: Mapping[str, HostUse] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    pulses: tuple[Pulse, ...] = ()
    late: tuple[int, ...] = ()
    refused: int = 0
    carried: Mapping[Pair, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FidelityViolation:
    """Deviation of the emulation from its request, beyond a tolerance.

    Attributes:
        kind: kind of deviation.
        where: host, link or core; empty for the machine. On a remote testbed, each machine is a
            host.
        first_ns: CLOCK_MONOTONIC of its beginning, at the latest.
        last_ns: CLOCK_MONOTONIC of its end, at the earliest.
        size: largest deviation, as a part of the requested value, or in seconds for clocks and
            missed cores.
        is_tolerated: whether it is within the tolerance of shares, over the whole run.
    """

    kind: ViolationKind
    where: str
    first_ns: int
    last_ns: int
    size: float
    is_tolerated: bool = False


@dataclass(frozen=True)
class Limits:
    """Tolerances of the monitor.

    Attributes:
        late_ns: allowed real lateness of a packet.
        compute: allowed relative error of a host's speed in a window.
        window: number of samples, one per real second, in a window.
        rates: highest rate, in real Mbit/s, that each link ever has.
    """

    late_ns: float
    compute: float
    window: int = round(WINDOW_S)
    rates: Mapping[Pair, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """Violation found by one look, and the samples between which it happened."""

    violation: FidelityViolation
    before_ns: int
    now_ns: int


@dataclass
class _Record:
    """Violations of several looks, merged.

    A violation that continues, or recurs within `gap_ns`, is the same one.
    """

    gap_ns: int
    _violations: dict[tuple[ViolationKind, str], list[FidelityViolation]] = field(
        default_factory=dict
    )

    def add(self, violation: FidelityViolation) -> None:
        known = self._violations.setdefault((violation.kind, violation.where), [])
        if known and violation.first_ns <= known[-1].last_ns + self.gap_ns:
            known[-1] = replace(
                known[-1],
                last_ns=max(known[-1].last_ns, violation.last_ns),
                size=max(known[-1].size, violation.size),
            )
        else:
            known.append(violation)

    @property
    def violations(self) -> tuple[FidelityViolation, ...]:
        """Return the violations in order of time."""
        return _in_order(
            violation for violations in self._violations.values() for violation in violations
        )


class FidelityMonitor:
    """Monitor that receives samples in order of time and reports violations."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._window: deque[FidelitySample] = deque(maxlen=limits.window + 1)
        self._opening: list[FidelitySample] = []
        self._found: deque[_Found] = deque()
        self._settled = _Record(limits.window * _NS)
        self._record = _Record(limits.window * _NS)
        self._whole: deque[tuple[int, list[FidelityViolation]]] = deque(maxlen=_REMEMBERED)

    def add(self, sample: FidelitySample) -> None:
        """Add a sample and compare it with the earlier ones."""
        if self._window:
            self._note(_check_clocks(self._window[-1], sample), self._window[-1], sample)
        if len(self._opening) <= self._limits.window:
            self._opening.append(sample)
        self._window.append(sample)
        if len(self._window) > self._limits.window:
            self._note(_check_window(tuple(self._window), self._limits), self._window[0], sample)
        whole = self._check_whole(sample)
        # Keep each result with violations, and the first one without after it: `violations` can
        # then find the result at any end.
        if whole or (self._whole and self._whole[-1][1]):
            self._whole.append((sample.at_ns, whole))

    def _check_whole(self, sample: FidelitySample) -> list[FidelityViolation]:
        """Return what recurred until it is a noticeable part of the run so far."""
        first, least_ns = self._opening[0], FEWEST_WINDOWS * self._limits.window * _NS
        excessive = {
            (each.kind, each.where)
            for each in _check_shares(first, sample, self._limits.compute, least_ns)
        }
        return [
            replace(each, is_tolerated=(each.kind, each.where) not in excessive)
            for each in _check_shares(first, sample, WHOLE_RUN, least_ns)
        ]

    def known(self) -> tuple[FidelityViolation, ...]:
        """Return the violations found so far, in order of time.

        Until the first window is complete, only clocks are judged.
        """
        return self._record.violations

    def violations(self, end_ns: int | None = None) -> tuple[FidelityViolation, ...]:
        """Return all violations up to the end of training, in order of time.

        A run shorter than a window is judged as a whole.

        Args:
            end_ns: CLOCK_MONOTONIC of the end; later events are ignored. None for the last sample.
        """
        record = deepcopy(self._settled)
        for each in self._found:
            violation = (
                each.violation
                if end_ns is None or each.now_ns <= end_ns
                else _clip_at_end(end_ns, each, self._limits)
            )
            if violation is not None:
                record.add(violation)
        for violation in self._of_short_run(end_ns):
            record.add(violation)
        # A host that is reported for a window is not reported again for the whole run.
        told = {(violation.kind, violation.where) for violation in record.violations}
        whole = next(
            (
                violations
                for at_ns, violations in reversed(self._whole)
                if end_ns is None or at_ns <= end_ns
            ),
            [],
        )
        return _in_order(
            [
                *record.violations,
                *(
                    violation
                    for violation in whole
                    if (violation.kind, violation.where) not in told
                ),
            ]
        )

    def _of_short_run(self, end_ns: int | None) -> list[FidelityViolation]:
        """Return the violations of a run that ended before the first window was complete.

        A run of less than a second includes the time until the next sample.
        """
        inside = [each for each in self._opening if end_ns is None or each.at_ns <= end_ns]
        samples = inside if len(inside) > 1 else self._opening[:2]
        if len(samples) < 2 or len(samples) > self._limits.window:
            return []
        return _check_window(samples, self._limits)

    def _note(
        self, violations: Sequence[FidelityViolation], before: FidelitySample, now: FidelitySample
    ) -> None:
        for violation in violations:
            self._found.append(_Found(violation, before.at_ns, now.at_ns))
            self._record.add(violation)
        # The oldest violations are settled: from then on they count, whatever the end is.
        while len(self._found) > _REMEMBERED:
            self._settled.add(self._found.popleft().violation)


def _clip_at_end(end_ns: int, found: _Found, limits: Limits) -> FidelityViolation | None:
    """Return the part of a violation that was certainly before the end; None if it is allowed.

    The violation's last sample was after the end. Everything that can have happened after the end
    is assumed to have happened there. Earlier looks have already found the rest, except events
    between their last sample and the end, and waits, which the kernel reports when they are over.
    """
    violation = found.violation
    after_s = (found.now_ns - end_ns) / _NS
    allowed_s = {
        "cpu starved": limits.compute * (found.now_ns - found.before_ns) / _NS,
        "machine suspended": STOOD_STILL_S,
    }.get(violation.kind, math.inf)
    if violation.size - after_s <= allowed_s:
        return None
    return replace(violation, last_ns=end_ns, size=violation.size - after_s)


def _in_order(violations: Iterable[FidelityViolation]) -> tuple[FidelityViolation, ...]:
    return tuple(
        sorted(
            violations, key=lambda violation: (violation.first_ns, violation.kind, violation.where)
        )
    )


def _check_clocks(before: FidelitySample, now: FidelitySample) -> list[FidelityViolation]:
    passed_ns = now.at_ns - before.at_ns
    # CLOCK_BOOTTIME gains on CLOCK_MONOTONIC only while the machine sleeps. CLOCK_REALTIME differs
    # from CLOCK_BOOTTIME by a constant until the wall clock is set. Samples are due once a second.
    slept_ns = (now.awake_ns - before.awake_ns) - passed_ns
    set_ns = (now.wall_ns - before.wall_ns) - (now.awake_ns - before.awake_ns)
    still_s = max(_measure_standstill_ns(before, now), slept_ns) / _NS
    violations = []
    if still_s > STOOD_STILL_S or slept_ns / _NS > CLOCK_SET_S:
        violations.append(
            FidelityViolation("machine suspended", "", before.at_ns, now.at_ns, still_s)
        )
    if abs(set_ns) / _NS > CLOCK_SET_S:
        violations.append(
            FidelityViolation("clock stepped", "", before.at_ns, now.at_ns, set_ns / _NS)
        )
    return violations


def _measure_standstill_ns(before: FidelitySample, now: FidelitySample) -> int:
    """Return the time between two samples in which nothing ran.

    A limiter that has beaten lately knows. Otherwise it is the lateness of the sample, although the
    sampling thread can also be late because many hosts compute at once.
    """
    witnesses = [
        after.stalled_ns - first.stalled_ns
        for first, after in zip(before.pulses, now.pulses, strict=False)
        if now.at_ns - after.beat_ns < STOOD_STILL_S * _NS
    ]
    return min(witnesses, default=now.at_ns - before.at_ns - _NS)


def _compare_samples(
    before: FidelitySample, now: FidelitySample, limits: Limits
) -> list[FidelityViolation]:
    return [
        *_check_lateness(before, now, limits),
        *_check_refused_frames(before, now),
        *_check_link_rates(before, now, limits),
        *_check_shares(before, now, limits.compute),
        *_check_stolen_cores(before, now),
    ]


def _check_window(window: Sequence[FidelitySample], limits: Limits) -> list[FidelityViolation]:
    """Return the violations of a window, each narrowed to the seconds that show it."""
    return [
        _narrow_violation(violation, window, limits)
        for violation in _compare_samples(window[0], window[-1], limits)
    ]


def _narrow_violation(
    violation: FidelityViolation, window: Sequence[FidelitySample], limits: Limits
) -> FidelityViolation:
    """Return a violation narrowed to the seconds of the window that show it alone."""
    seconds = [
        (before, now)
        for before, now in pairwise(window)
        if any(
            (each.kind, each.where) == (violation.kind, violation.where)
            for each in _compare_samples(before, now, limits)
        )
    ]
    if not seconds:
        return violation
    first_ns = violation.first_ns if violation.first_ns < window[0].at_ns else seconds[0][0].at_ns
    return replace(violation, first_ns=first_ns, last_ns=seconds[-1][1].at_ns)


def _check_lateness(
    before: FidelitySample, now: FidelitySample, limits: Limits
) -> list[FidelityViolation]:
    counts = [after - first for after, first in zip(now.late, before.late, strict=True)]
    total = sum(counts)
    if total < FEWEST_PACKETS:
        return []
    # Bucket b holds lateness below 2^b ns: count only buckets that are wholly above the limit.
    late = sum(counts[math.ceil(math.log2(limits.late_ns)) + 1 :]) / total
    return (
        [FidelityViolation("emulator late", "", before.at_ns, now.at_ns, late)]
        if late > LATE_PACKETS
        else []
    )


def _check_refused_frames(before: FidelitySample, now: FidelitySample) -> list[FidelityViolation]:
    sent = sum(now.late) - sum(before.late)
    refused = now.refused - before.refused
    if sent < FEWEST_PACKETS or refused <= REFUSED * sent:
        return []
    return [FidelityViolation("frames refused", "", before.at_ns, now.at_ns, refused / sent)]


def _check_link_rates(
    before: FidelitySample, now: FidelitySample, limits: Limits
) -> list[FidelityViolation]:
    violations = []
    for pair, rate_mbps in limits.rates.items():
        allowed_bytes = rate_mbps / 8e3 * (now.at_ns - before.at_ns) + _BURST_BYTES
        excess = (now.carried.get(pair, 0) - before.carried.get(pair, 0)) / allowed_bytes - 1
        if excess > EXCEEDED:
            violations.append(
                FidelityViolation(
                    "rate exceeded", f"{pair[0]} -> {pair[1]}", before.at_ns, now.at_ns, excess
                )
            )
    return violations


def _check_shares(
    before: FidelitySample, now: FidelitySample, allowed: float, least_ns: int = 0
) -> list[FidelityViolation]:
    """Return hosts that computed too slowly or too fast, by more than `allowed` of the time.

    The allowance is a part of the host's computing or of the elapsed time, whichever is more. A
    host that hardly computes may miss much of that little without delaying a step. Intervals
    shorter than `least_ns` count as that long.
    """
    violations = []
    for host, use in now.hosts.items():
        first = before.hosts.get(host, HostUse())
        due_ns = use.due_ns - first.due_ns
        lost_ns = use.lost_ns - first.lost_ns
        ahead_ns = (
            max(use.owed_ns, 0)
            - max(first.owed_ns, 0)
            - _SLICES * LONGEST_SLICE_NS / _least_share(host, before, now)
        )
        # A held-back host owes the time of a few slices at any moment; only more than that is an
        # excess.
        enough_ns = allowed * max(due_ns, now.at_ns - before.at_ns, least_ns)
        if lost_ns > enough_ns:
            # The kernel reports a wait when it is over, which can be many samples after it began.
            first_ns = min(before.at_ns, now.at_ns - lost_ns)
            violations.append(
                FidelityViolation("cpu starved", host, first_ns, now.at_ns, lost_ns / _NS)
            )
        if ahead_ns > enough_ns:
            violations.append(
                FidelityViolation(
                    "share exceeded", host, before.at_ns, now.at_ns, ahead_ns / max(due_ns, 1)
                )
            )
    return violations


def _least_share(host: str, *samples: FidelitySample) -> float:
    return min(sample.shares.get(host, 1.0) for sample in samples)


def _check_stolen_cores(before: FidelitySample, now: FidelitySample) -> list[FidelityViolation]:
    passed_ns = now.at_ns - before.at_ns
    parts = {
        core: (stolen - before.stolen_ns.get(core, 0)) / passed_ns
        for core, stolen in now.stolen_ns.items()
    }
    return [
        FidelityViolation("cpu stolen", f"core {core}", before.at_ns, now.at_ns, part)
        for core, part in parts.items()
        if part > STOLEN
    ]
