"""The grid: what it is made of, that a seed decides all of it, and that any beginning of it is a
fair sample."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.case_grid import (
    CROWDS,
    INJECTED_FAMILIES,
    KINDS,
    LENGTHS,
    MAGNITUDES,
    NOISES,
    REPETITIONS,
    STEPS,
    WORKERS,
    EvaluationCase,
    build_full_grid,
    build_tiers,
)
from laggard.analysis.evaluate.ground_truth import build_events

GRID = build_full_grid(7)


def test_every_combination_is_in_it_five_times() -> None:
    cells = Counter(
        (c.family, c.kind, c.magnitude, c.length, c.workers, c.crowd, c.noise) for c in GRID
    )
    wanted = [
        (family, kind, m, length, workers, crowd, noise)
        for family, kind, m, workers, crowd, noise in product(
            INJECTED_FAMILIES, KINDS, MAGNITUDES, WORKERS, CROWDS, NOISES
        )
        for length in (LENGTHS if kind == "dynamic" else (STEPS,))
        if family != "network" or crowd == "minority"
    ]
    assert {cells[cell] for cell in wanted} == {REPETITIONS}
    assert sum(cells[cell] for cell in wanted) == sum(case.family != "none" for case in GRID)
    assert len({case.number for case in GRID}) == len(GRID)


@pytest.mark.parametrize("count", [12, 120, 1200, 9000, len(GRID)])
def test_a_third_of_any_beginning_is_clean_half_of_it_with_unequal_work(count: int) -> None:
    clean = [case for case in GRID[:count] if case.family == "none"]
    assert len(clean) == pytest.approx(count / 3, abs=1)
    unequal = sum(case.imbalance != "none" for case in clean)
    assert unequal == pytest.approx(len(clean) / 2, abs=2.5 * len(clean) ** 0.5)


def test_a_beginning_has_as_much_of_every_class() -> None:
    counts = Counter((case.family, case.kind) for case in GRID[:1200] if case.family != "none")
    assert set(counts) == set(product(INJECTED_FAMILIES, KINDS))
    assert max(counts.values()) - min(counts.values()) <= 1


def test_at_most_a_fifth_of_the_events_could_be_seen_by_nobody() -> None:
    events = [event for case in GRID[:1500] for event in build_events(case.to_trace_spec())]
    assert 0 < sum(not event.detectable for event in events) <= len(events) / 5


@given(st.sampled_from(GRID))
@settings(max_examples=200, deadline=None)
def test_a_case_is_what_it_says(case: EvaluationCase) -> None:
    spec = case.to_trace_spec()
    assert spec == case.to_trace_spec()
    assert sum(tier.hosts for tier in spec.tiers) == case.workers
    ranks = [cause.rank for cause in spec.injections if cause.family != "network"]
    assert len(set(ranks)) == len(ranks)
    families = {cause.family for cause in spec.injections}
    assert families == {"none": set(), "both": {"compute", "network"}}.get(
        case.family, {case.family}
    )
    if ranks:
        assert (len(ranks) > case.workers / 2) == (case.crowd == "majority")
        assert len(ranks) <= 3 * case.workers / 4
    for event in build_events(spec):
        assert event.kind == case.kind
        assert 0 <= event.first <= event.last < spec.steps
        if case.kind == "dynamic":
            assert event.last - event.first + 1 == case.length


@given(st.sampled_from([case for case in GRID if case.kind == "deterministic"]))
@settings(max_examples=100, deadline=None)
def test_some_class_of_hosts_is_left_to_be_slow_against(case: EvaluationCase) -> None:
    spec = case.to_trace_spec()
    slow = {
        cause.rank
        for cause in spec.injections
        if cause.rank is not None and cause.family != "network"
    }
    firsts = [sum(tier.hosts for tier in spec.tiers[:n]) for n in range(len(spec.tiers))]
    shares = [
        len(slow & set(range(first, first + tier.hosts))) / tier.hosts
        for first, tier in zip(firsts, spec.tiers, strict=True)
    ]
    assert min(shares) <= 0.5


def test_another_seed_draws_another_grid() -> None:
    other = build_full_grid(8)
    assert [case.number for case in other] != [case.number for case in GRID]
    assert {case.to_trace_spec().seed for case in other[:50]}.isdisjoint(
        case.to_trace_spec().seed for case in GRID[:50]
    )


def test_tiers_of_any_size() -> None:
    assert [[tier.hosts for tier in build_tiers(workers)] for workers in (4, 8, 64)] == [
        [1, 1, 2],
        [2, 2, 4],
        [16, 16, 32],
    ]
