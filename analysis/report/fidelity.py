"""Fidelity section of the report: verdict, summary by quantity, and the full list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.report.status_message import StatusMessage
from laggard.core.run_schema import FidelityCheck

MOST_SHOWN = 12
_NAMES = {
    "rtt": "Round-trip time",
    "rate": "Rate",
    "loss": "Loss",
    "cpu": "CPU slowdown",
    "storage": "Drive",
}


@dataclass(frozen=True)
class KindRow:
    """Summary row of all checks of one quantity."""

    name: str
    within: str
    error: str
    allowed: str
    missed: bool


@dataclass(frozen=True)
class CheckRow:
    """Row of one check, as text."""

    name: str
    where: str
    requested: str
    measured: str
    tolerance: str
    detail: str
    ok: bool


@dataclass(frozen=True)
class FidelityPart:
    """Fidelity section of the report.

    `shown` rows are always visible and `folded` rows on request; misses are always visible.
    """

    verdict: StatusMessage
    kinds: tuple[KindRow, ...]
    shown: tuple[CheckRow, ...]
    folded: tuple[CheckRow, ...]


def build_fidelity_part(checks: Sequence[FidelityCheck], *, violated: bool = False) -> FidelityPart:
    """Build the section that compares requested and measured values; misses come first.

    Args:
        checks: values measured before training.
        violated: if true, the emulation was out of tolerance during training.
    """
    ordered = sorted(checks, key=lambda c: c.ok)
    kinds = dict.fromkeys(c.kind for c in checks)
    rows = tuple(_build_check_row(check) for check in ordered)
    few = len(rows) <= MOST_SHOWN
    return FidelityPart(
        verdict=_summarize_checks(checks, violated),
        kinds=tuple(_build_kind_row([c for c in checks if c.kind == kind]) for kind in kinds),
        shown=rows if few else tuple(row for row in rows if not row.ok),
        folded=() if few else rows,
    )


def _summarize_checks(checks: Sequence[FidelityCheck], violated: bool) -> StatusMessage:
    missed = sum(not c.ok for c in checks)
    if not checks:
        return StatusMessage(
            "Not measured: this run has no check that its network and hosts were as requested.",
            "care",
        )
    if missed:
        return StatusMessage(
            f"No: {missed} of {len(checks)} measured quantities missed their tolerance.", "bad"
        )
    if violated:
        return StatusMessage(
            "Not throughout: the emulation was within tolerance before training, but out of"
            " tolerance during training.",
            "bad",
        )
    number = (
        "the only measured quantity is"
        if len(checks) == 1
        else f"all {len(checks)} measured quantities are"
    )
    return StatusMessage(f"Yes: {number} within tolerance.", "good")


def _build_kind_row(checks: Sequence[FidelityCheck]) -> KindRow:
    # The largest error relative to its own tolerance, since tolerances differ between checks.
    worst = max(checks, key=_compute_tolerance_use)
    within = sum(c.ok for c in checks)
    return KindRow(
        name=_NAMES[worst.kind],
        within=f"{within} of {len(checks)}",
        error=_format_amount(abs(worst.measured - worst.requested), worst.unit),
        allowed=_format_amount(worst.tolerance, worst.unit),
        missed=within < len(checks),
    )


def _compute_tolerance_use(check: FidelityCheck) -> float:
    # The bound avoids a division by a tolerance of 0.
    return abs(check.measured - check.requested) / max(check.tolerance, 1e-12)


def _build_check_row(check: FidelityCheck) -> CheckRow:
    return CheckRow(
        name=_NAMES[check.kind],
        where=check.src if check.dst is None else f"{check.src} → {check.dst}",
        requested=_format_amount(check.requested, check.unit),
        measured=_format_amount(check.measured, check.unit),
        tolerance="± " + _format_amount(check.tolerance, check.unit),
        detail=check.detail,
        ok=check.ok,
    )


def _format_amount(value: float, unit: str) -> str:
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{text}{'' if unit in {'x', '×'} else ' '}{unit}".strip()
