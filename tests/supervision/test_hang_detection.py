"""Who hangs, from made-up signs of life."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from laggard.core.span_schema import Phase
from laggard.supervision.hang_detection import (
    BUSY_TIMEOUT_S,
    IDLE_TIMEOUT_S,
    HangDetector,
    ProcessState,
    format_hang,
)
from laggard.workloads.tracing.heartbeat import Beat

STILL_S = IDLE_TIMEOUT_S + 1
IDLE, STOPPED = ProcessState(1.0, stopped=False), ProcessState(1.0, stopped=True)


def beats(*phases: Phase) -> tuple[Beat, ...]:
    """Of ranks that entered these phases of step 3 at one second."""
    return tuple(Beat(rank, 3, phase, round(1e9), 100 + rank) for rank, phase in enumerate(phases))


def hung_after(
    ages_s: Sequence[float], phases: Sequence[Phase], conditions: Mapping[int, ProcessState]
) -> Beat | None:
    """What is decided at the last of several looks, by the ranks' ages then."""
    watch, found = HangDetector(), None
    for age_s in ages_s:
        found = watch.find_hung_rank(
            beats(*phases), round((1 + age_s) * 1e9), lambda rank: conditions.get(rank, IDLE)
        )
    return found


@pytest.mark.parametrize(
    ("ages_s", "phases", "conditions", "rank"),
    [
        ((5, 10), (Phase.FORWARD, Phase.COMM), {}, None),
        ((STILL_S,), (Phase.FORWARD, Phase.COMM), {}, None),
        ((STILL_S, STILL_S + 1.9), (Phase.FORWARD, Phase.COMM), {}, None),
        ((STILL_S, STILL_S + 2.1), (Phase.FORWARD, Phase.COMM), {}, 0),
        ((STILL_S, STILL_S + 2.1), (Phase.COMM, Phase.FORWARD), {}, 1),
        ((STILL_S, STILL_S + 2.1), (Phase.FORWARD, Phase.COMM), {1: STOPPED}, 1),
        (
            (BUSY_TIMEOUT_S + 1,),
            (Phase.COMM, Phase.BACKWARD),
            {1: ProcessState(500.0, stopped=False)},
            1,
        ),
    ],
    ids=(
        "moving",
        "just suspected",
        "suspected too short",
        "idle",
        "waiting is no guilt",
        "stopped first",
        "busy",
    ),
)
def test_who_hangs(
    ages_s: Sequence[float],
    phases: Sequence[Phase],
    conditions: Mapping[int, ProcessState],
    rank: int | None,
) -> None:
    found = hung_after(ages_s, phases, conditions)
    assert (found.rank if found else None) == rank


def test_a_rank_that_computes_is_patiently_waited_for() -> None:
    watch = HangDetector()
    for second in range(100):
        used = ProcessState(0.5 * second, stopped=False)
        assert (
            watch.find_hung_rank(
                beats(Phase.FORWARD, Phase.COMM),
                round((20 + second) * 1e9),
                lambda _, used=used: used,
            )
            is None
        )  # type: ignore[misc]
    now_ns = round(122.5 * 1e9)
    watch.find_hung_rank(
        beats(Phase.FORWARD, Phase.COMM),
        round(120 * 1e9),
        lambda _: ProcessState(49.5, stopped=False),
    )
    found = watch.find_hung_rank(
        beats(Phase.FORWARD, Phase.COMM), now_ns, lambda _: ProcessState(49.5, stopped=False)
    )
    assert found is not None, "and no longer once it has stopped computing"
    assert format_hang(found, now_ns) == "hangs: in phase forward of step 3 for 122 s"


def test_patience_is_in_virtual_time() -> None:
    slow = HangDetector(dilation=3.0)
    for age_s in (STILL_S, STILL_S + 2.1):
        assert (
            slow.find_hung_rank(beats(Phase.FORWARD), round((1 + age_s) * 1e9), lambda _: IDLE)
            is None
        )
