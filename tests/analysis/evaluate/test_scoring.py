"""Verdicts and scores against runs worked out by hand, and what must be so of any."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.analysis.evaluate.finding_judgment import CaseJudgment, judge_findings
from laggard.analysis.evaluate.scoring import compute_score
from tests.analysis.evaluate.sample_events import LINK, event, finding

CD, CL, SD, ND = (
    ("compute", "dynamic"),
    ("compute", "deterministic"),
    ("storage", "dynamic"),
    ("network", "dynamic"),
)


def test_a_run_by_hand() -> None:
    events = [
        event(10, 29, rank=0),
        event(10, 29, rank=1),
        event(50, 99, rank=None, family="network"),
        event(70, 79, rank=2, detectable=False),
        event(40, 49, rank=3, detectable=False),
    ]
    findings = [
        finding(12, 30, rank=0),
        finding(11, 29, rank=1, family="storage"),
        finding(70, 79, rank=2),
        finding(0, 99, rank=7, kind="deterministic"),
    ]
    assert judge_findings(events, findings, 100, 0.02) == CaseJudgment(
        found=((CD, CD), (CD, SD)),
        missed=(ND,),
        false_positives=(CL,),
        undetectable=2,
        onset_delays=(2, 1),
        rank_named=True,
        link_named=False,
        clean_steps=0,
        cost_error=0.02,
    )


def test_a_clean_run_by_hand() -> None:
    verdict = judge_findings(
        [], [finding(0, 20), finding(0, 20, rank=None, family="network")], 400, None
    )
    assert (verdict.false_positives, verdict.clean_steps) == ((CD, ND), 400)
    assert (verdict.rank_named, verdict.link_named) == (None, None)
    assert verdict.errors == 2


@pytest.mark.parametrize(
    ("top", "named"),
    [
        (finding(10, 19, rank=1), True),
        (finding(19, 60, rank=1), True),
        (finding(20, 60, rank=1), False),
        (finding(10, 19, rank=2), False),
    ],
)
def test_the_dearest_rank_is_one_that_was_slow_then(top: object, named: bool) -> None:
    findings = [finding(0, 99, rank=None, family="network"), top, finding(10, 19, rank=1)]
    assert judge_findings([event(10, 19, rank=1)], findings, 100, None).rank_named == named  # type: ignore[arg-type]


@pytest.mark.parametrize(("link", "named"), [(LINK, True), (LINK[::-1], False), (None, False)])
def test_the_dearest_link_is_one_that_was_slow_then(
    link: tuple[str, str] | None, named: bool
) -> None:
    slow = event(10, 19, rank=None, family="network")
    found = finding(10, 19, rank=None, family="network", link=link)
    assert judge_findings([slow], [finding(0, 99, rank=1), found], 100, None).link_named == named
    assert judge_findings([slow], [], 100, None).link_named is False
    assert (
        judge_findings(
            [event(10, 19, rank=None, family="network", detectable=False)], [found], 100, None
        ).link_named
        is None
    )


def test_a_score_by_hand() -> None:
    slowed = CaseJudgment(
        found=((CD, CD), (CD, CD), (CD, SD), (SD, SD)),
        missed=(ND, SD),
        false_positives=(CL,),
        undetectable=2,
        onset_delays=(0, 2, -4),
        rank_named=True,
        link_named=False,
        clean_steps=0,
        cost_error=0.01,
    )
    other = CaseJudgment(((ND, ND),), (), (), 0, (1,), None, True, 0, 0.03)
    clean = CaseJudgment((), (), (CD,), 0, (), None, None, 500, None)
    whole = compute_score([slowed, other, clean])
    assert (whole.cases, whole.events, whole.undetectable) == (3, 7, 2)
    assert whole.precision == pytest.approx(5 / 7)
    assert whole.recall == pytest.approx(5 / 7)
    assert whole.f1 == pytest.approx(5 / 7)
    # Compute dynamic: 2 right, 1 false, 1 missed; storage dynamic: 1, 1, 1; network dynamic: 1, 0,
    # 1.
    assert whole.label_macro_f1 == pytest.approx((4 / 6 + 2 / 4 + 2 / 3) / 3)
    assert (whole.top1, whole.link_top1) == (1.0, 0.5)
    assert (whole.onset_delay_steps, whole.onset_error_steps_p90) == (0.5, pytest.approx(3.4))
    assert whole.false_alarms_per_1000_steps == pytest.approx(2.0)
    assert (whole.cost_error_p50, whole.cost_error_p90) == (
        pytest.approx(0.02),
        pytest.approx(0.028),
    )
    assert whole.undetectable_share == pytest.approx(2 / 9)


def test_of_nothing_nothing_is_said() -> None:
    empty = compute_score([])
    assert (empty.cases, empty.events, empty.undetectable) == (0, 0, 0)
    assert (
        empty.f1
        is empty.precision
        is empty.top1
        is empty.cost_error_p50
        is empty.undetectable_share
        is None
    )
    assert empty.false_alarms_per_1000_steps is None


spans = st.tuples(st.integers(0, 80), st.integers(9, 40)).map(lambda t: (t[0], t[0] + t[1]))


@given(
    st.lists(st.tuples(spans, st.integers(0, 3), st.booleans()), max_size=6),
    st.lists(st.tuples(spans, st.integers(0, 3)), max_size=6),
)
@settings(max_examples=60, deadline=None)
def test_every_event_and_finding_counts_once(
    truth: list[tuple[tuple[int, int], int, bool]], told: list[tuple[tuple[int, int], int]]
) -> None:
    events = [event(*s, rank, detectable=seen) for s, rank, seen in truth]
    findings = [finding(*s, rank) for s, rank in told]
    verdict = judge_findings(events, findings, 120, None)
    assert len(verdict.found) + len(verdict.missed) + verdict.undetectable == len(events)
    assert len(verdict.found) + len(verdict.false_positives) <= len(findings)
    if all(event.detectable for event in events):
        assert len(verdict.found) + len(verdict.false_positives) == len(findings)
    whole = compute_score([verdict])
    for share in (whole.precision, whole.recall, whole.f1, whole.label_macro_f1):
        assert share is None or 0.0 <= share <= 1.0


@given(
    st.lists(st.tuples(spans, st.integers(0, 5)), min_size=1, max_size=6, unique_by=lambda t: t[1])
)
@settings(max_examples=30, deadline=None)
def test_who_finds_all_and_no_more_has_full_marks(truth: list[tuple[tuple[int, int], int]]) -> None:
    verdict = judge_findings(
        [event(*s, rank) for s, rank in truth], [finding(*s, rank) for s, rank in truth], 120, 0.0
    )
    whole = compute_score([verdict])
    assert (whole.f1, whole.label_macro_f1, whole.top1, whole.onset_delay_steps) == (
        1.0,
        1.0,
        1.0,
        0.0,
    )
    assert verdict.errors == 0
