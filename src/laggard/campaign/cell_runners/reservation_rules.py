"""Rules of a campaign that keeps one reservation for many cells. Pure.

A cell starts if it fits into the rest of the walltime. Otherwise another reservation is made, if
the budget of node-hours allows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

BRING_UP_S = 300.0
"""Seconds from the start of a run on prepared nodes to its first step, and from its last step to
its collected data, if nothing was measured yet."""
UNKNOWN_CELL_S = 900.0
"""Rest of a walltime in which a cell of unknown duration is started."""
MARGIN = 1.25
"""Factor on the longest measured duration of a setup, for what differs between its repeats."""

_HOUR_S = 3600.0


@dataclass(frozen=True)
class CellEstimate:
    """Duration of a cell in real seconds.

    Attributes:
        expected_s: duration that is known, and that a whole walltime must have; 0 if none is.
        needed_s: rest of a walltime that is enough, also if this cell is slower than others.
    """

    expected_s: float
    needed_s: float


@dataclass(frozen=True)
class MeasuredDurations:
    """Longest real seconds of finished cells, by setup."""

    longest_s: Mapping[str, float] = field(default_factory=dict)

    def add(self, setup: str, seconds: float) -> MeasuredDurations:
        """Return the durations with that of another cell."""
        longest_s = max(seconds, self.longest_s.get(setup, 0.0))
        return replace(self, longest_s={**self.longest_s, setup: longest_s})

    def estimate(self, setup: str, stop_time_s: float | None) -> CellEstimate:
        """Estimate the duration of a cell.

        Args:
            setup: setup of the cell, whose finished cells are the best evidence.
            stop_time_s: stopping rule of its training; None if there is no such rule, and then the
                longest cell of any setup is the evidence.
        """
        measured_s = self.longest_s.get(setup)
        if measured_s is None and stop_time_s is not None:
            return CellEstimate(stop_time_s, BRING_UP_S + stop_time_s)
        if measured_s is None:
            longest_s = max(self.longest_s.values(), default=UNKNOWN_CELL_S / MARGIN)
            return CellEstimate(0.0, MARGIN * longest_s)
        return CellEstimate(measured_s, MARGIN * measured_s)


@dataclass(frozen=True)
class ReservationLimits:
    """Limits of a campaign's reservations.

    Attributes:
        nodes: nodes of one reservation.
        walltime_s: length of one reservation; None if machines are kept for any time.
        renewable: whether another reservation can be made.
        budget_node_hours: node-hours of all reservations; None if they are not limited.
    """

    nodes: int
    walltime_s: float | None
    renewable: bool
    budget_node_hours: float | None = None


@dataclass(frozen=True)
class NextStep:
    """Action before a cell.

    Attributes:
        action: `start` the cell, `reserve` machines first, or `stop` the campaign.
        reason: reason of `stop`.
    """

    action: Literal["start", "reserve", "stop"]
    reason: str = ""


def choose_next_step(
    estimate: CellEstimate,
    left_s: float | None,
    used_node_seconds: float,
    limits: ReservationLimits,
) -> NextStep:
    """Choose what to do before a cell.

    Args:
        estimate: duration of the cell.
        left_s: seconds for which the machines are still held; None if none are held.
        used_node_seconds: nodes x seconds of all reservations so far, the present one included.
        limits: limits of the reservations.
    """
    if left_s is not None and left_s >= estimate.needed_s:
        return NextStep("start")
    if left_s is not None and not limits.renewable:
        return NextStep(
            "stop",
            f"the given jobs end in {left_s:.0f} s, and a cell takes up to"
            f" {estimate.needed_s:.0f} s — give other jobs with --job, or omit it",
        )
    walltime_s = limits.walltime_s
    if walltime_s is not None and walltime_s < estimate.expected_s:
        return NextStep(
            "stop",
            f"a cell takes about {estimate.expected_s:.0f} s, and a reservation lasts"
            f" {walltime_s:.0f} s — give a longer --walltime",
        )
    after = (used_node_seconds + limits.nodes * (walltime_s or 0.0)) / _HOUR_S
    if limits.budget_node_hours is not None and after > limits.budget_node_hours:
        return NextStep(
            "stop",
            f"stop.node_hours: another reservation would make it {after:.2f}, and"
            f" {limits.budget_node_hours:g} are allowed",
        )
    return NextStep("reserve")


def split_into_reservations(needed_s: Iterable[float], walltime_s: float) -> tuple[int, ...]:
    """Return how many cells each reservation has, if they run in this order.

    A cell that needs more than a whole walltime has a reservation of its own.
    """
    counts: list[int] = []
    left_s = 0.0
    for each_s in needed_s:
        if not counts or each_s > left_s:
            counts.append(0)
            left_s = walltime_s
        counts[-1] += 1
        left_s -= each_s
    return tuple(counts)
