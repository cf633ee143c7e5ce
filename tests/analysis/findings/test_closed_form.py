"""What slow places cost in traces of one step to many, against the same training without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from laggard.analysis.findings.analyze_run import analyze_run
from laggard.analysis.findings.answer import format_answer
from tests.analysis.imported_runs import Training, measure_lost_share, record

TP_AND_DP = (((0, 1), (2, 3)), ((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 1, 2, 3),))
WITHOUT_ALL = (*TP_AND_DP[:3], ((0, 2), (1, 3)))
BASE = Training(steps=0)

# Name: training, its slow ranks, and their family.
CASES: dict[str, tuple[Training, set[int], str]] = {
    "one rank computes": (
        replace(BASE, factor=lambda rank, _s, _p: 4.0 if rank == 3 else 1.0),
        {3},
        "compute",
    ),
    "five of eight compute": (
        replace(BASE, ranks=8, factor=lambda rank, _s, _p: 4.0 if rank > 2 else 1.0),
        {3, 4, 5, 6, 7},
        "compute",
    ),
    "one step": (
        replace(BASE, factor=lambda rank, step, _p: 30.0 if (rank, step) == (1, 0) else 1.0),
        {1},
        "compute",
    ),
    "every third step": (
        replace(BASE, factor=lambda rank, step, _p: 3.0 if rank == 2 and step % 3 == 0 else 1.0),
        {2},
        "compute",
    ),
    "the host stalls": (
        replace(BASE, stall_ms=lambda rank, _s, _p: 8.0 if rank == 2 else 0.0),
        {2},
        "host",
    ),
    "the host stalls in every third step": (
        replace(BASE, stall_ms=lambda rank, step, _p: 8.0 if (rank, step % 3) == (2, 0) else 0.0),
        {2},
        "host",
    ),
    "before one collective of four": (
        replace(BASE, pieces=4, factor=lambda rank, _s, p: 4.0 if (rank, p) == (3, 1) else 1.0),
        {3},
        "compute",
    ),
    "two ranks before different collectives": (
        replace(
            BASE,
            pieces=4,
            factor=lambda rank, _s, p: 4.0 if (rank, p) in {(3, 1), (1, 3)} else 1.0,
        ),
        {1, 3},
        "compute",
    ),
    "stalls before one collective of four": (
        replace(BASE, pieces=4, stall_ms=lambda rank, _s, p: 15.0 if (rank, p) == (0, 2) else 0.0),
        {0},
        "host",
    ),
    "groups": (
        replace(
            BASE,
            pieces=4,
            groups=TP_AND_DP,
            factor=lambda rank, _s, p: 4.0 if (rank, p) == (3, 1) else 1.0,
        ),
        {3},
        "compute",
    ),
    "groups, none of all ranks": (
        replace(
            BASE,
            pieces=4,
            groups=WITHOUT_ALL,
            factor=lambda rank, _s, p: 4.0 if (rank, p) == (3, 1) else 1.0,
        ),
        {3},
        "compute",
    ),
}


@pytest.mark.parametrize("steps", [1, 3, 5, 10, 24])
@pytest.mark.parametrize("case", CASES)
def test_found_costs_are_true_costs(case: str, steps: int) -> None:
    made, slow, family = CASES[case]
    training = replace(made, steps=steps)
    analysis = analyze_run(record(training)[0])
    assert {f.rank for f in analysis.stragglers} == slow
    assert {f.family for f in analysis.stragglers} == {family}
    found = analysis.lost_s / analysis.makespan_s
    assert found == pytest.approx(measure_lost_share(training), abs=0.02 if steps > 9 else 0.05)
    assert not analysis.has_unexplained_waits


@pytest.mark.parametrize("steps", [1, 3, 5, 10, 24])
@pytest.mark.parametrize("case", CASES)
def test_nobody_is_named_where_nothing_is_slow(case: str, steps: int) -> None:
    run, _ = record(replace(CASES[case][0].healthy, steps=steps))
    analysis = analyze_run(run)
    assert analysis.findings == ()
    assert not any("rank-" in sentence for sentence in format_answer(run, analysis))


@pytest.mark.parametrize("steps", [5, 10, 24, 100])
def test_one_slow_collective_is_a_finding_of_the_network(steps: int) -> None:
    training = replace(BASE, steps=steps, transfer=lambda s, _p: 300.0 if s == steps // 2 else 1.0)
    analysis = analyze_run(record(training)[0])
    (finding,) = analysis.stragglers
    assert (finding.family, finding.rank) == ("network", None)
    assert (finding.first_step, finding.last_step) == (steps // 2, steps // 2)
    found = analysis.lost_s / analysis.makespan_s
    assert found == pytest.approx(measure_lost_share(training), abs=0.02)


@pytest.mark.parametrize("steps", [24, 100])
def test_waiting_for_ranks_by_turns_is_said_first(steps: int) -> None:
    """Another rank is late in every step, so that all have the same jitter."""
    training = replace(
        BASE, steps=steps, factor=lambda rank, step, _p: 4.0 if rank == step % 4 else 1.0
    )
    run, _ = record(training)
    first = format_answer(run, analyze_run(run))[0]
    assert first.startswith("Jitter from step to step makes ranks wait for one another")


@pytest.mark.parametrize("steps", [24, 100])
def test_waiting_while_others_exchange_data_is_no_jitter(steps: int) -> None:
    """The first ranks of two tiers exchange for 40 ms, for which the second ranks wait."""
    tiers = ((0, 1), (2, 3))
    training = replace(
        BASE,
        steps=steps,
        pieces=3,
        groups=(tiers, ((0, 2),), tiers),
        transfer=lambda _s, piece: 200.0 if piece == 1 else 1.0,
    )
    run, seconds = record(training)
    analysis = analyze_run(run)
    assert analysis.findings == ()
    assert analysis.waits is not None
    assert analysis.waits.structure_s == pytest.approx(0.040 * steps / 2, rel=0.02)
    assert analysis.waits.jitter_s < 0.05 * seconds
    said = format_answer(run, analysis)
    assert said[0].startswith("Ranks wait while others still exchange data")
    assert not any("Jitter" in sentence for sentence in said)


@pytest.mark.parametrize("steps", [3, 10, 24, 100])
def test_waiting_that_no_finding_explains_is_not_hidden(steps: int) -> None:
    """Every rank is always late at a collective of its own, and works as much as the others."""
    training = replace(
        BASE, steps=steps, pieces=4, factor=lambda rank, _s, p: 4.0 if rank == p else 1.0
    )
    run, _ = record(training)
    analysis = analyze_run(run)
    assert analysis.has_unexplained_waits
    assert not analysis.is_reliable
    first = format_answer(run, analysis)[0]
    assert first.startswith("Ranks wait for one another for")
    assert "do not rely on the costs" in first
    assert not any("No straggler" in sentence for sentence in format_answer(run, analysis))


def test_a_host_that_always_stalls_may_stall_longer_for_a_while() -> None:
    training = replace(
        BASE,
        steps=60,
        stall_ms=lambda rank, step, _p: (20.0 if 20 <= step < 40 else 8.0) if rank == 2 else 0.0,
    )
    analysis = analyze_run(record(training)[0])
    assert {(f.rank, f.family, f.kind) for f in analysis.stragglers} == {
        (2, "host", "deterministic"),
        (2, "host", "dynamic"),
    }
    found = analysis.lost_s / analysis.makespan_s
    assert found == pytest.approx(measure_lost_share(training), abs=0.02)


def test_one_step_is_said_to_be_one() -> None:
    run, _ = record(replace(CASES["one rank computes"][0], steps=1))
    assert "in this one step" in format_answer(run, analyze_run(run))[0]


def test_a_single_rank_has_nobody_to_be_compared_with() -> None:
    run, _ = record(replace(BASE, steps=30, ranks=1))
    assert "no other rank to compare it with" in format_answer(run, analyze_run(run))[0]
