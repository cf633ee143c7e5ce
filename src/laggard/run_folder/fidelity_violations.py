"""Fidelity violations of a run, as text and as a file of the run folder."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import FidelityError
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.dynamics import EventRecord
from laggard.network_emulation.fidelity.monitor import (
    CHANGE_LATE_S,
    FidelityViolation,
    describe_violation,
)

_MAX_LISTED = 12


@dataclass(frozen=True)
class TimedViolation:
    """A violation between two moments, in virtual seconds after time zero (of a training, its
    first-step barrier).
    """

    violation: FidelityViolation
    first_s: float
    last_s: float


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
    folder: Path, violations: Sequence[TimedViolation], activity: str = "training ran"
) -> None:
    """Put `fidelity_violations.json` down.

    Args:
        folder: of the run.
        violations: all of them.
        activity: what went on while they were watched for.

    Raises:
        FidelityError: the emulation slipped.
    """
    (folder / "fidelity_violations.json").write_text(
        json.dumps(to_violation_rows(violations), indent=1) + "\n"
    )
    if not violations:
        return
    lines = [f"  {format_violation(each)}" for each in violations[:_MAX_LISTED]]
    more = (
        [f"  and {len(violations) - _MAX_LISTED} more, in fidelity_violations.json"]
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
            "text": describe_violation(each.violation),
        }
        for each in violations
    ]


def format_violation(each: TimedViolation) -> str:
    """When and where, on one line."""
    return f"{each.first_s:.1f} to {each.last_s:.1f} s: {describe_violation(each.violation)}"


def _get_violation_key(violation: FidelityViolation) -> tuple[str, str, int]:
    """What stays of a violation while it goes on."""
    return violation.kind, violation.where, violation.first_ns
