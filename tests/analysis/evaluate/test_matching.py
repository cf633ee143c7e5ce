"""Which finding is which event: a table, and all pairings tried."""

from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.ground_truth import InjectedEvent
from laggard.analysis.evaluate.matching import LEAST_OVERLAP, compute_overlap, match_findings
from laggard.core.run_schema import Finding
from tests.analysis.evaluate.sample_events import event, finding


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((10, 19), 1.0),
        ((10, 14), 0.5),
        ((15, 24), 1 / 3),
        ((20, 29), 0.0),
        ((0, 29), 1 / 3),
        ((19, 40), 1 / 31),
        ((100, 120), 0.0),
    ],
)
def test_overlap_is_shared_steps_over_steps_of_either(
    found: tuple[int, int], expected: float
) -> None:
    assert compute_overlap(event(10, 19), finding(*found)) == pytest.approx(expected)


def test_other_places_share_nothing() -> None:
    assert compute_overlap(event(10, 19, rank=0), finding(10, 19, rank=1)) == 0.0
    assert compute_overlap(event(10, 19, rank=None), finding(10, 19, rank=0)) == 0.0
    assert compute_overlap(event(10, 19, rank=None), finding(10, 19, rank=None)) == 1.0


def test_two_findings_of_one_event_are_one_found_and_one_too_many() -> None:
    assert match_findings([event(0, 99)], [finding(0, 49), finding(0, 99)]) == ((0, 1),)


def test_a_class_decides_where_steps_do_not() -> None:
    events = [event(0, 99, family="compute"), event(0, 99, family="storage")]
    findings = [finding(0, 99, family="storage"), finding(0, 99, family="compute")]
    assert match_findings(events, findings) == ((0, 1), (1, 0))


def test_nothing_and_nothing() -> None:
    assert match_findings([], [finding(0, 9)]) == ()
    assert match_findings([event(0, 9)], []) == ()


stretches = st.tuples(st.integers(0, 12), st.integers(0, 8)).map(lambda t: (t[0], t[0] + t[1]))
families = st.sampled_from(["compute", "storage"])
some_events = st.lists(
    st.builds(lambda s, r, f: event(*s, r, f), stretches, st.integers(0, 1), families), max_size=4
)
some_findings = st.lists(
    st.builds(lambda s, r, f: finding(*s, r, f), stretches, st.integers(0, 1), families), max_size=4
)


def worth(
    events: list[InjectedEvent], findings: list[Finding], pairs: list[tuple[int, int]]
) -> tuple[int, float]:
    common = [
        compute_overlap(events[e], findings[f])
        + (events[e].label == (findings[f].family, findings[f].kind))
        for e, f in pairs
    ]
    return len(pairs), sum(common)


def best_of_all(events: list[InjectedEvent], findings: list[Finding]) -> tuple[int, float]:
    """By trying every way to give each event another finding, or none."""
    slots = [*range(len(findings)), *[-1] * len(events)]
    tried = []
    for given_ in set(permutations(slots, len(events))):
        pairs = [
            (e, f)
            for e, f in enumerate(given_)
            if f >= 0 and compute_overlap(events[e], findings[f]) >= LEAST_OVERLAP
        ]
        tried.append(worth(events, findings, pairs))
    return max(tried)


@given(some_events, some_findings)
@settings(max_examples=60, deadline=None)
def test_no_other_pairing_is_better(events: list[InjectedEvent], findings: list[Finding]) -> None:
    pairs = list(match_findings(events, findings))
    assert len({e for e, _ in pairs}) == len({f for _, f in pairs}) == len(pairs)
    assert worth(events, findings, pairs) == pytest.approx(best_of_all(events, findings))
