"""Fidelity as a verdict, a summary by quantity and the full list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from laggard.analysis.report.tone import Verdict
from laggard.run_schema import FidelityCheck

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
    """All checks of one quantity."""

    name: str
    within: str
    error: str
    allowed: str
    missed: bool


@dataclass(frozen=True)
class CheckRow:
    """One check, in words."""

    name: str
    where: str
    requested: str
    measured: str
    tolerance: str
    detail: str
    ok: bool


@dataclass(frozen=True)
class FidelityPart:
    """The report's part about fidelity: `shown` rows are seen at once, `folded` ones on request;
    misses are always shown.
    """

    verdict: Verdict
    kinds: tuple[KindRow, ...]
    shown: tuple[CheckRow, ...]
    folded: tuple[CheckRow, ...]


def fidelity_part(checks: Sequence[FidelityCheck], *, slipped: bool = False) -> FidelityPart:
    """What the emulation gave against what it was asked for before training; misses come first.

    Args:
        checks: what was measured.
        slipped: whether the emulation did not keep to it while training ran.
    """
    ordered = sorted(checks, key=lambda c: c.ok)
    kinds = dict.fromkeys(c.kind for c in checks)
    rows = tuple(_row(check) for check in ordered)
    few = len(rows) <= MOST_SHOWN
    return FidelityPart(
        verdict=_verdict(checks, slipped),
        kinds=tuple(_kind_row([c for c in checks if c.kind == kind]) for kind in kinds),
        shown=rows if few else tuple(row for row in rows if not row.ok),
        folded=() if few else rows,
    )


def _verdict(checks: Sequence[FidelityCheck], slipped: bool) -> Verdict:
    missed = sum(not c.ok for c in checks)
    if not checks:
        return Verdict(
            "Not measured: nothing says that this run's network and hosts were as asked for.",
            "care",
        )
    if missed:
        return Verdict(
            f"No: {missed} of {len(checks)} measured quantities missed their tolerance.", "bad"
        )
    if slipped:
        return Verdict(
            "Not throughout: it was within tolerance before training, and slipped while training"
            " ran.",
            "bad",
        )
    number = (
        "the only measured quantity is"
        if len(checks) == 1
        else f"all {len(checks)} measured quantities are"
    )
    return Verdict(f"Yes: {number} within tolerance.", "good")


def _kind_row(checks: Sequence[FidelityCheck]) -> KindRow:
    worst = max(checks, key=_use_of_tolerance)
    within = sum(c.ok for c in checks)
    return KindRow(
        name=_NAMES[worst.kind],
        within=f"{within} of {len(checks)}",
        error=_amount(abs(worst.measured - worst.requested), worst.unit),
        allowed=_amount(worst.tolerance, worst.unit),
        missed=within < len(checks),
    )


def _use_of_tolerance(check: FidelityCheck) -> float:
    return abs(check.measured - check.requested) / max(check.tolerance, 1e-12)


def _row(check: FidelityCheck) -> CheckRow:
    return CheckRow(
        name=_NAMES[check.kind],
        where=check.src if check.dst is None else f"{check.src} → {check.dst}",
        requested=_amount(check.requested, check.unit),
        measured=_amount(check.measured, check.unit),
        tolerance="± " + _amount(check.tolerance, check.unit),
        detail=check.detail,
        ok=check.ok,
    )


def _amount(value: float, unit: str) -> str:
    text = f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{text}{'' if unit in {'x', '×'} else ' '}{unit}".strip()
