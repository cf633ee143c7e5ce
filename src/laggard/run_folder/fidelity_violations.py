"""Fidelity violations of a run, as text and as a file of the run folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import FidelityError
from laggard.core.files.output_files import write_json
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.dynamics import EventRecord
from laggard.network_emulation.fidelity.monitor import (
    CHANGE_LATE_S,
    FidelityViolation,
)
from laggard.network_emulation.fidelity.violation_text import describe_violation

_MAX_LISTED = 4


@dataclass(frozen=True)
class TimedViolation:
    """Violation with its first and last moment.

    Times are virtual seconds after time zero, which is the first-step barrier of a training.
    """

    violation: FidelityViolation
    first_s: float
    last_s: float


def find_late_changes(
    events: Sequence[EventRecord], zero_ns: int, dilation: Dilation, end_ns: int | None = None
) -> tuple[TimedViolation, ...]:
    """Return a violation for each change that took effect much later than requested.

    Args:
        events: applied events.
        zero_ns: CLOCK_MONOTONIC of time zero.
        dilation: dilation between real and virtual time.
        end_ns: CLOCK_MONOTONIC of the end; later changes are ignored.
    """
    end_s = math.inf if end_ns is None else dilation.virtual_s((end_ns - zero_ns) / 1e9)
    late: dict[tuple[str, float], float] = {}
    for event in events:
        where = f"{event.src} -> {event.dst}" if event.dst else event.src
        if event.requested_s < end_s and event.effective_s - event.requested_s > CHANGE_LATE_S:
            late[where, event.requested_s] = max(
                event.effective_s, late.get((where, event.requested_s), 0.0)
            )

    def at_ns(virtual_s: float) -> int:
        return zero_ns + round(dilation.real_s(virtual_s) * 1e9)

    return tuple(
        TimedViolation(
            FidelityViolation(
                "event late",
                where,
                at_ns(requested_s),
                at_ns(effective_s),
                effective_s - requested_s,
            ),
            requested_s,
            effective_s,
        )
        for (where, requested_s), effective_s in late.items()
    )


def require_no_violations(
    folder: Path, found: Sequence[TimedViolation], activity: str = "training ran"
) -> tuple[str, ...]:
    """Write `fidelity_violations.json`, and fail if there are violations.

    Args:
        folder: run folder.
        found: all violations, and what is tolerated.
        activity: activity during the monitoring, for the message.

    Returns:
        A warning for everything that is tolerated.

    Raises:
        FidelityError: there are violations.
    """
    violations = [each for each in found if not each.violation.is_tolerated]
    write_json(folder / "fidelity_violations.json", to_violation_rows(violations))
    if not violations:
        return tuple(
            f"{format_violation(each)}; that is within the tolerance, and its times may be wrong by"
            " as much"
            for each in found
        )
    lines = [f"  {line}" for line in format_first(violations)]
    slower = (
        ", or with a higher --dilation, which gives every host more time at its core"
        if any(each.violation.kind == "cpu starved" for each in violations)
        else ""
    )
    opening = (
        f"the emulation left its tolerances while {activity}, so the results are not those of the"
        f" requested continuum — run again while no other program uses the machine{slower}:"
    )
    raise FidelityError("\n".join((opening, *lines)))


def to_violation_rows(violations: Sequence[TimedViolation]) -> list[dict[str, str | float]]:
    """Convert violations to JSON values."""
    return [
        {
            "kind": each.violation.kind,
            "where": each.violation.where,
            "first_s": round(each.first_s, 3),
            "last_s": round(each.last_s, 3),
            "size": round(each.violation.size, 4),
            "text": describe_violation(each.violation),
        }
        for each in violations
    ]


def format_first(violations: Sequence[TimedViolation]) -> list[str]:
    """Format the first violations, and how many there are more."""
    first = [format_violation(each) for each in violations[:_MAX_LISTED]]
    rest = len(violations) - len(first)
    return [*first, f"and {rest} more, in fidelity_violations.json"] if rest else first


def format_violation(each: TimedViolation) -> str:
    """Format the times and the place of a violation as one line."""
    return f"{each.first_s:.1f} to {each.last_s:.1f} s: {describe_violation(each.violation)}"


def _get_violation_key(violation: FidelityViolation) -> tuple[str, str, int]:
    """Return the parts of a violation that do not change while it continues."""
    return violation.kind, violation.where, violation.first_ns
