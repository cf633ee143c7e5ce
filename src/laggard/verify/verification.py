"""Judgment over several rounds of emulation, each between two measurements of quietness."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from laggard.core.run_schema import FidelityCheck, Record
from laggard.core.text.text_columns import align_columns
from laggard.network_emulation.fidelity.quietness import CoreQuietness

MOST_EVENT_LATENESS_MS = 20.0
"""Tolerance of the median delay from a timed event's requested time to its effect."""

Verdict = Literal["good", "out of tolerance", "not quiet"]


@dataclass(frozen=True)
class VerificationRound:
    """One emulation of the continuum between two quietness measurements of the machine.

    Attributes:
        before: quietness of the cores just before
        after: quietness of the cores just after
        checks: fidelity checks of the emulation, in virtual units
        event_lateness_ms: delay from each event's requested time to its effect
        error: reason why the emulation did not start; empty if it did
    """

    before: tuple[CoreQuietness, ...]
    after: tuple[CoreQuietness, ...]
    checks: tuple[FidelityCheck, ...]
    event_lateness_ms: tuple[float, ...]
    error: str = ""

    @property
    def is_quiet(self) -> bool:
        """Return whether every core was quiet before and after."""
        return all(core.is_quiet for core in (*self.before, *self.after))


class VerifiedQuantity(Record):
    """One emulated quantity over all counted rounds; `tolerance` is absolute."""

    kind: str
    src: str
    dst: str | None
    unit: str
    requested: float
    tolerance: float
    median: float
    lowest: float
    highest: float
    ok: bool


class Verification(Record):
    """Result of `laggard verify`."""

    verdict: Verdict
    rounds: int
    quiet_rounds: int
    quantities: tuple[VerifiedQuantity, ...]
    errors: tuple[str, ...]
    disturbances: tuple[str, ...]

    def to_json(self) -> str:
        """Return the result as JSON."""
        return self.model_dump_json(indent=2)

    def text(self) -> str:
        """Return the result as text."""
        return "\n".join(self._format_lines())

    def _format_lines(self) -> Iterator[str]:
        yield f"{self.rounds} rounds, {self.quiet_rounds} of them on a quiet machine"
        yield from align_columns([_HEADER, *map(_format_row, self.quantities)])
        yield from (f"  emulation failed: {error}" for error in self.errors)
        yield from (f"  not quiet: {each}" for each in self.disturbances[:4])
        yield _VERDICTS[self.verdict]


_HEADER = ("quantity", "where", "requested", "median", "lowest to highest", "tolerance", "")
_VERDICTS: dict[Verdict, str] = {
    "good": "good: this machine emulates every quantity within its tolerance",
    "out of tolerance": (
        "out of tolerance: on a quiet machine, the quantities marked NO exceed their tolerance —"
        " request lower rates or fewer hosts, or give `laggard run` a larger --dilation"
    ),
    "not quiet": (
        "not quiet: this machine was never quiet, so the result is not conclusive — end other"
        " programs and repeat"
    ),
}


def judge(rounds: Sequence[VerificationRound]) -> Verification:
    """Judge the medians over the quiet rounds, or over all rounds if none was quiet.

    Args:
        rounds: at least one round, in order
    """
    quiet = [each for each in rounds if each.is_quiet]
    counted = quiet or list(rounds)
    quantities = (*_compare_checks(counted), *_compare_events(counted))
    errors = tuple(dict.fromkeys(each.error for each in counted if each.error))
    failed = bool(errors) or not all(quantity.ok for quantity in quantities)
    return Verification(
        verdict="not quiet" if not quiet else "out of tolerance" if failed else "good",
        rounds=len(rounds),
        quiet_rounds=len(quiet),
        quantities=quantities,
        errors=errors,
        disturbances=tuple(_list_disturbances(rounds)),
    )


def _compare_checks(rounds: Iterable[VerificationRound]) -> Iterator[VerifiedQuantity]:
    alike: dict[tuple[object, ...], list[FidelityCheck]] = defaultdict(list)
    for check in (check for each in rounds for check in each.checks):
        # Checks of different rounds belong together if they request the same value of the same
        # target.
        alike[check.kind, check.src, check.dst, check.requested].append(check)
    for checks in alike.values():
        first, values = checks[0], [check.measured for check in checks]
        middle = median(values)
        yield VerifiedQuantity(
            kind=first.kind,
            src=first.src,
            dst=first.dst,
            unit=first.unit,
            requested=first.requested,
            tolerance=first.tolerance,
            median=middle,
            lowest=min(values),
            highest=max(values),
            ok=sum(check.ok for check in checks) * 2 > len(checks),
        )


def _compare_events(rounds: Iterable[VerificationRound]) -> Iterator[VerifiedQuantity]:
    late_ms = [each for round_ in rounds for each in round_.event_lateness_ms]
    if late_ms:
        middle = median(late_ms)
        yield VerifiedQuantity(
            kind="event",
            src="all",
            dst=None,
            unit="ms late",
            requested=0.0,
            tolerance=MOST_EVENT_LATENESS_MS,
            median=middle,
            lowest=min(late_ms),
            highest=max(late_ms),
            ok=middle <= MOST_EVENT_LATENESS_MS,
        )


def _list_disturbances(rounds: Sequence[VerificationRound]) -> Iterator[str]:
    for number, each in enumerate(rounds, start=1):
        for core in (*each.before, *each.after):
            if not core.is_quiet:
                yield f"round {number}, {core.describe()}"


def _format_row(quantity: VerifiedQuantity) -> tuple[str, ...]:
    where = f"{quantity.src} -> {quantity.dst}" if quantity.dst else quantity.src
    return (
        quantity.kind,
        where,
        f"{quantity.requested:.4g} {quantity.unit}",
        f"{quantity.median:.4g}",
        f"{quantity.lowest:.4g} to {quantity.highest:.4g}",
        f"± {quantity.tolerance:.2g}",
        "ok" if quantity.ok else "NO",
    )
