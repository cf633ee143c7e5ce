"""Whether the emulation kept its promises while training ran: what was verified before, watched
until the end.

Once a second a `FidelitySample` is taken of what costs nothing to read: how late the emulator sent,
what hosts computed against their shares and for how long they were kept from their cores, what the
hypervisor stole, what links carried, and three clocks. `FidelityMonitor` looks at the last few of
them together and says when, where and how the emulation slipped. One late packet, or a core missed
for ten milliseconds, changes no step that anybody could see; what counts is what lasts, or returns
until it is a part of the whole run.

When a training ended is known after the fact: whether it has come far enough is seen by evaluating
a model of a moment that is past by then, while ranks go on, part and tear down. What of that is not
of the run is told apart at the end (`FidelityMonitor.violations`).
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
"""Virtual seconds that are looked at together."""

STOOD_STILL_S = 1.0
"""A sample that comes so much too late was taken on a machine that stood still."""

CLOCK_SET_S = 0.1
"""The wall clock, or the time slept, may move so far from the steady clock between two samples."""

STOLEN = 0.10
"""Part of a core's time in a window that the hypervisor may take; the tasks' own CPU clocks may
count it as theirs."""

LATE_PACKETS = 0.10
"""Part of a window's packets that may be later than the tolerance."""

FEWEST_PACKETS = 100
"""Packets of a window without which nothing is said of the emulator."""

REFUSED = 0.001
"""Part of a window's packets that a receiver's device may refuse."""

EXCEEDED = 0.05
"""Part by which a link may carry more than its rate in a window: what waited in a device arrives in
bursts."""

CHANGE_LATE_S = 1.0
"""Virtual seconds by which a change may take effect after it was asked for."""

WHOLE_RUN = 0.01
"""Part of the whole run for which a host may have been kept from its core.

No time that a run tells can be off by more for it, even if all others had waited for that host: a
fifth of the 5 % to which shares are promised, and a tenth of what runs of one scenario differ by
whose ranks go at their own pace (`docs/strategies.md`)."""

FEWEST_WINDOWS = 2
"""A run shorter than so many windows is allowed what one of so many is, a tenth of a second: what
happened once has not returned."""

_REMEMBERED = 10_000
"""Looks that slipped which are kept apart, for an end that is told later."""

_SLICES = 4
_BURST_BYTES = 1 << 17
_NS = 1_000_000_000


@dataclass(frozen=True)
class FidelitySample:
    """The state of an emulation at one moment, in real units; all counts are since the emulation
    began.

    Attributes:
        at_ns: CLOCK_MONOTONIC.
        wall_ns: CLOCK_REALTIME.
        awake_ns: CLOCK_BOOTTIME, which runs on while a machine sleeps.
        stolen_ns: what the hypervisor took of every core.
        hosts: how every host has computed.
        shares: the share of every host now.
        late: packets by the bit length of their lateness in ns; empty where the kernel sends them.
        refused: frames that a receiver's device did not take.
        carried: bytes that every link has carried; empty where it costs too much to ask.
    """

    at_ns: int
    wall_ns: int
    awake_ns: int
    stolen_ns: Mapping[int, int] = field(default_factory=dict)
    hosts: Mapping[str, HostUse] = field(default_factory=dict)
    shares: Mapping[str, float] = field(default_factory=dict)
    late: tuple[int, ...] = ()
    refused: int = 0
    carried: Mapping[Pair, int] = field(default_factory=dict)


@dataclass(frozen=True)
class FidelityViolation:
    """The emulation was not what it should have been.

    Attributes:
        kind: how.
        where: the host, link or core; empty for the machine. Of the machines of a remote testbed,
            each is a host.
        first_ns: CLOCK_MONOTONIC from when on at the latest.
        last_ns: until when at the earliest.
        size: how much, where it was worst: a part of what it should have been, or seconds for
            clocks and cores missed.
    """

    kind: ViolationKind
    where: str
    first_ns: int
    last_ns: int
    size: float


@dataclass(frozen=True)
class Limits:
    """What is allowed.

    Attributes:
        late_ns: lateness of a packet, real.
        compute: relative error of a host's speed in a window.
        window: samples, a real second each, that make a window.
        rates: the highest rate, in real Mbit/s, that each link ever has.
    """

    late_ns: float
    compute: float
    window: int = round(WINDOW_S)
    rates: Mapping[Pair, float] = field(default_factory=dict)


@dataclass(frozen=True)
class _Found:
    """A violation as one look showed it, and between which samples."""

    violation: FidelityViolation
    before_ns: int
    now_ns: int


@dataclass
class _Record:
    """Slips of several looks; one that goes on, or is back before so long has passed, is the
    same.
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
        """In order of time."""
        return _in_order(
            violation for violations in self._violations.values() for violation in violations
        )


class FidelityMonitor:
    """Takes samples in order of time and says where the emulation slipped."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._window: deque[FidelitySample] = deque(maxlen=limits.window + 1)
        self._opening: list[FidelitySample] = []
        self._found: deque[_Found] = deque()
        self._settled = _Record(limits.window * _NS)
        self._record = _Record(limits.window * _NS)
        self._whole: deque[tuple[int, list[FidelityViolation]]] = deque(maxlen=_REMEMBERED)

    def add(self, sample: FidelitySample) -> None:
        """Look at one more sample."""
        if self._window:
            self._note(_check_clocks(self._window[-1], sample), self._window[-1], sample)
        if len(self._opening) <= self._limits.window:
            self._opening.append(sample)
        self._window.append(sample)
        if len(self._window) > self._limits.window:
            self._note(_check_window(tuple(self._window), self._limits), self._window[0], sample)
        whole = _check_shares(
            self._opening[0], sample, WHOLE_RUN, FEWEST_WINDOWS * self._limits.window * _NS
        )
        if whole or (self._whole and self._whole[-1][1]):
            self._whole.append((sample.at_ns, whole))

    def known(self) -> tuple[FidelityViolation, ...]:
        """What is known to have slipped by now, in order of time; until there is a window, clocks
        only.
        """
        return self._record.violations

    def violations(self, end_ns: int | None = None) -> tuple[FidelityViolation, ...]:
        """Everything that slipped, in order of time, now that there is an end; what is shorter than
        a window is looked at as a whole.

        Args:
            end_ns: CLOCK_MONOTONIC of the end: what came after it counts for nothing. None for the
                last sample.
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
        """Of a run that ended before there was a window; of less than a second, with what came
        until the next sample.
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
        while len(self._found) > _REMEMBERED:
            self._settled.add(self._found.popleft().violation)


def _clip_at_end(end_ns: int, found: _Found, limits: Limits) -> FidelityViolation | None:
    """The part of a violation that was surely before the end, where its last sample was after it;
    None where what is left is none.

    All that can have happened after the end is taken to have: the looks before this one have shown
    everything else but what came between their last sample and the end, and waits, which the kernel
    tells of when they are over.
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
    slept_ns = (now.awake_ns - before.awake_ns) - passed_ns
    set_ns = (now.wall_ns - before.wall_ns) - (now.awake_ns - before.awake_ns)
    still_s = max(passed_ns / _NS - 1.0, slept_ns / _NS)
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
    """What the samples show together, each violation between the first and the last second that
    show it.
    """
    return [
        _narrow_violation(violation, window, limits)
        for violation in _compare_samples(window[0], window[-1], limits)
    ]


def _narrow_violation(
    violation: FidelityViolation, window: Sequence[FidelitySample], limits: Limits
) -> FidelityViolation:
    """The violation from the first to the last second of the window that shows it by itself."""
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
    # Bucket b holds what is below 2^b ns: those wholly above the limit are surely too late.
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
    """Hosts that computed slower or faster than their shares, for more of their computing and of
    the time than is allowed.

    A host that hardly computes may miss much of that little, and no step would take longer for it.
    What is shorter than `least_ns` counts as that long.
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
        enough_ns = allowed * max(due_ns, now.at_ns - before.at_ns, least_ns)
        if lost_ns > enough_ns:
            # The kernel tells of a wait when it is over, which can be many samples after it began.
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


def describe_violation(violation: FidelityViolation) -> str:
    """What slipped, in words."""
    part = f"{100 * violation.size:.0f} %"
    machine = violation.where or "the machine"
    return {
        "emulator late": f"the link emulator sent {part} of the packets too late",
        "frames refused": f"{part} of the packets were refused by their receivers' devices",
        "rate exceeded": f"{violation.where} carried {part} more than its rate",
        "cpu starved": (
            f"{violation.where} waited {violation.size:.2f} s for its core, which others had"
        ),
        "share exceeded": f"{violation.where} computed {part} more than its share",
        "cpu stolen": f"the hypervisor took {part} of {violation.where}",
        "machine suspended": f"{machine} stood still for {violation.size:.1f} s",
        "clock stepped": f"the wall clock of {machine} was set by {violation.size:+.1f} s",
        "event late": f"{violation.where} changed {violation.size:.1f} s too late",
    }[violation.kind]
