"""When a cell starts in the present reservation, in another one, or not at all."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.campaign.cell_runners.reservation_rules import (
    BRING_UP_S,
    MARGIN,
    UNKNOWN_CELL_S,
    CellEstimate,
    MeasuredDurations,
    NextStep,
    ReservationLimits,
    choose_next_step,
    split_into_reservations,
)

HOUR_S = 3600.0
MEASURED = MeasuredDurations().add("slow", 400.0).add("slow", 300.0).add("fast", 100.0)


@pytest.mark.parametrize(
    ("durations", "setup", "stop_time_s", "expected"),
    [
        (MeasuredDurations(), "slow", None, CellEstimate(0.0, UNKNOWN_CELL_S)),
        (MeasuredDurations(), "slow", 60.0, CellEstimate(60.0, 60.0 + BRING_UP_S)),
        (MEASURED, "slow", None, CellEstimate(400.0, MARGIN * 400.0)),
        (MEASURED, "fast", 60.0, CellEstimate(100.0, MARGIN * 100.0)),
        (MEASURED, "other", 60.0, CellEstimate(60.0, 60.0 + BRING_UP_S)),
        (MEASURED, "other", None, CellEstimate(0.0, MARGIN * 400.0)),
    ],
)
def test_the_best_evidence_gives_the_estimate(
    durations: MeasuredDurations, setup: str, stop_time_s: float | None, expected: CellEstimate
) -> None:
    assert durations.estimate(setup, stop_time_s) == expected


LIMITS = ReservationLimits(nodes=4, walltime_s=HOUR_S, renewable=True, budget_node_hours=10.0)
KEPT = ReservationLimits(nodes=0, walltime_s=None, renewable=False)


@pytest.mark.parametrize(
    ("needed_s", "left_s", "used_h", "limits", "action", "reason"),
    [
        (600, None, 0.0, LIMITS, "reserve", ""),
        (600, 600.0, 4.0, LIMITS, "start", ""),
        (600, 599.0, 4.0, LIMITS, "reserve", ""),
        (
            600,
            599.0,
            6.1,
            LIMITS,
            "stop",
            "stop.node_hours: another reservation would make it 10.1",
        ),
        # The rest of a reservation is used even if the budget allows no other.
        (600, 601.0, 9.9, LIMITS, "start", ""),
        (3601, None, 0.0, LIMITS, "stop", "give a longer --walltime"),
        (3600, None, 0.0, LIMITS, "reserve", ""),
        (600, None, 0.0, KEPT, "reserve", ""),
        (600, math.inf, 0.0, KEPT, "start", ""),
        (600, 599.0, 0.0, KEPT, "stop", "the given jobs end in 599 s"),
    ],
)
def test_the_next_step(
    needed_s: float,
    left_s: float | None,
    used_h: float,
    limits: ReservationLimits,
    action: str,
    reason: str,
) -> None:
    estimate = CellEstimate(needed_s, needed_s)
    step = choose_next_step(estimate, left_s, used_h * HOUR_S, limits)
    assert step.action == action
    assert reason in step.reason
    assert bool(step.reason) == (action == "stop")


def test_a_guess_is_tried_in_a_short_reservation() -> None:
    limits = ReservationLimits(nodes=1, walltime_s=120.0, renewable=True)
    guess = MeasuredDurations().estimate("any", None)
    assert choose_next_step(guess, None, 0.0, limits) == NextStep("reserve")


@given(st.lists(st.floats(1.0, 5000.0), max_size=30), st.floats(10.0, 4000.0))
def test_every_cell_is_in_one_reservation_that_it_fits(
    needed_s: list[float], walltime_s: float
) -> None:
    counts = split_into_reservations(needed_s, walltime_s)
    assert sum(counts) == len(needed_s)
    rest = iter(needed_s)
    for position, count in enumerate(counts):
        cells = [next(rest) for _ in range(count)]
        assert count == 1 or sum(cells) <= walltime_s * (1 + 1e-9)
        if position + 1 < len(counts):
            following = needed_s[sum(counts[: position + 1])]
            assert sum(cells) + following > walltime_s * (1 - 1e-9)
