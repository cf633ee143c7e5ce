"""Payments in whole tokens: balanced always, and a claim that is not true never pays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.contribution.client_contributions import ClientContribution
from laggard.core.contribution.payments import compute_payments, divide_tokens

CLIENTS = range(5)


@st.composite
def rounds(draw: st.DrawFn) -> tuple[list[int], dict[int, ClientContribution], int]:
    selected = draw(st.lists(st.sampled_from(CLIENTS), min_size=1, max_size=5, unique=True))
    accepted = draw(st.lists(st.sampled_from(selected), unique=True))
    values = st.floats(-5, 5)
    return (
        selected,
        {each: ClientContribution(draw(values)) for each in accepted},
        draw(st.integers(0, 30)),
    )


@given(rounds(), st.dictionaries(st.sampled_from(CLIENTS), st.integers(-50, 300)))
def test_what_clients_get_and_pay_adds_up_to_nothing(
    drawn: tuple[list[int], dict[int, ClientContribution], int], claims: dict[int, int]
) -> None:
    selected, contributions, fee = drawn
    paid_out = compute_payments(selected, contributions, fee, claims)
    assert paid_out.balance == 0
    assert set(paid_out.payments) == set(selected)
    assert all(tokens >= 0 for tokens in paid_out.payments.values())


@given(rounds(), st.sampled_from(CLIENTS), st.integers(-50, 300))
def test_no_claim_pays_more_than_the_truth(
    drawn: tuple[list[int], dict[int, ClientContribution], int], liar: int, claim: int
) -> None:
    selected, contributions, fee = drawn
    if liar not in selected or all(each.value <= 0 for each in contributions.values()):
        return
    honest = compute_payments(selected, contributions, fee)
    lied = compute_payments(selected, contributions, fee, {liar: claim})
    others = [each for each in contributions if each != liar and contributions[each].value > 0]
    if others:
        assert lied.payments[liar] <= honest.payments[liar]


def test_payments_follow_contributions() -> None:
    contributions = {
        1: ClientContribution(3.0),
        2: ClientContribution(1.0),
        3: ClientContribution(-2.0),
    }
    paid_out = compute_payments([1, 2, 3, 4], contributions, 10)
    assert paid_out.payments == {1: 30, 2: 10, 3: 0, 4: 0}
    assert paid_out.remarks == {}


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
    paid_out = compute_payments([1, 2, 3, 4], contributions, 10, {1: claim})
    assert paid_out.payments == {1: paid, 2: 40 - paid, 3: 0, 4: 0}
    assert paid_out.remarks.get(1, "") == remark


def test_a_claim_may_exceed_an_inexact_contribution_by_its_error() -> None:
    contributions = {1: ClientContribution(1.0, error=0.1), 2: ClientContribution(1.0)}
    paid_out = compute_payments([1, 2, 3, 4], contributions, 10, {1: 23})
    assert paid_out.payments[1] == 20
    assert paid_out.remarks == {}


def test_fees_come_back_if_nobody_helped() -> None:
    paid_out = compute_payments([1, 2, 3], {1: ClientContribution(-1.0)}, 7)
    assert paid_out.payments == {1: 7, 2: 7, 3: 7}


@given(st.integers(0, 1000), st.dictionaries(st.integers(0, 9), st.floats(0, 1e6), min_size=1))
def test_parts_are_whole_and_at_most_a_token_off(tokens: int, weights: dict[int, float]) -> None:
    parts, whole = divide_tokens(tokens, weights), sum(weights.values())
    assert sum(parts.values()) == (tokens if whole > 0 else 0)
    for each, part in parts.items():
        if whole > 0:
            assert abs(part - tokens * (weights[each] / whole)) < 1 + 1e-9 * tokens
