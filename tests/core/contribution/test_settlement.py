"""Payments in whole tokens: balanced always, and a claim that is not true never pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.contribution.client_contributions import ClientContribution
from laggard.core.contribution.settlement import divide_tokens, settle_round

CLIENTS = range(5)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[int], dict[int, ClientContribution], int]:
    asked = draw(st.lists(st.sampled_from(CLIENTS), min_size=1, max_size=5, unique=True))
    accepted = draw(st.lists(st.sampled_from(asked), unique=True))
    values = st.floats(-5, 5)
    return (
        asked,
        {each: ClientContribution(draw(values)) for each in accepted},
        draw(st.integers(0, 30)),
    )


@given(rounds(), st.dictionaries(st.sampled_from(CLIENTS), st.integers(-50, 300)))
def test_what_clients_get_and_pay_adds_up_to_nothing(
    drawn: tuple[list[int], dict[int, ClientContribution], int], claims: dict[int, int]
) -> None:
    asked, contributions, fee = drawn
    settled = settle_round(asked, contributions, fee, claims)
    assert settled.balance == 0
    assert set(settled.payments) == set(asked)
    assert all(tokens >= 0 for tokens in settled.payments.values())


@given(rounds(), st.sampled_from(CLIENTS), st.integers(-50, 300))
def test_no_claim_pays_more_than_the_truth(
    drawn: tuple[list[int], dict[int, ClientContribution], int], liar: int, claim: int
) -> None:
    asked, contributions, fee = drawn
    if liar not in asked or all(each.value <= 0 for each in contributions.values()):
        return
    honest = settle_round(asked, contributions, fee)
    lied = settle_round(asked, contributions, fee, {liar: claim})
    others = [each for each in contributions if each != liar and contributions[each].value > 0]
    if others:
        assert lied.payments[liar] <= honest.payments[liar]


def test_payments_follow_contributions() -> None:
    contributions = {
        1: ClientContribution(3.0),
        2: ClientContribution(1.0),
        3: ClientContribution(-2.0),
    }
    settled = settle_round([1, 2, 3, 4], contributions, 10)
    assert settled.payments == {1: 30, 2: 10, 3: 0, 4: 0}
    assert settled.remarks == {}


@pytest.mark.parametrize(
    ("claim", "paid", "remark"),
    [
        (-1, 0, "claimed -1 of 40 tokens"),
        (41, 0, "claimed 41 of 40 tokens"),
        (25, 15, "claimed 25 tokens for 20"),
        (40, 0, "claimed 40 tokens for 20"),
        (20, 20, ""),
        (5, 5, ""),
    ],
)
def test_a_claim_is_paid_up_to_what_was_earned(claim: int, paid: int, remark: str) -> None:
    contributions = {1: ClientContribution(1.0), 2: ClientContribution(1.0)}
    settled = settle_round([1, 2, 3, 4], contributions, 10, {1: claim})
    assert settled.payments == {1: paid, 2: 40 - paid, 3: 0, 4: 0}
    assert settled.remarks.get(1, "") == remark


def test_a_claim_may_exceed_an_inexact_contribution_by_its_error() -> None:
    contributions = {1: ClientContribution(1.0, error=0.1), 2: ClientContribution(1.0)}
    settled = settle_round([1, 2, 3, 4], contributions, 10, {1: 23})
    assert settled.payments[1] == 20
    assert settled.remarks == {}


def test_fees_come_back_if_nobody_helped() -> None:
    settled = settle_round([1, 2, 3], {1: ClientContribution(-1.0)}, 7)
    assert settled.payments == {1: 7, 2: 7, 3: 7}


@given(st.integers(0, 1000), st.dictionaries(st.integers(0, 9), st.floats(0, 1e6), min_size=1))
def test_parts_are_whole_and_at_most_a_token_off(tokens: int, weights: dict[int, float]) -> None:
    parts, whole = divide_tokens(tokens, weights), sum(weights.values())
    assert sum(parts.values()) == (tokens if whole > 0 else 0)
    for each, part in parts.items():
        if whole > 0:
            assert abs(part - tokens * (weights[each] / whole)) < 1 + 1e-9 * tokens
