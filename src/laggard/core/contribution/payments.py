"""Payments of a round in whole tokens: all pay for the model, and contributions are paid.

Each client that a round selected pays the same fee. All fees are paid out: to each client that has
answered in proportion to its contribution, and nothing to one that did not help. A client may claim
less than that, and the rest goes to the others. It gains nothing by claiming more: what it claims
too much is taken from its payment, and a claim that is negative or larger than all fees together
is paid nothing. What clients get and pay always adds up to zero.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from laggard.core.contribution.client_contributions import ClientContribution

ERRORS_ALLOWED = 2.0
"""Standard errors of a contribution by which a claim may exceed it."""


@dataclass(frozen=True)
class RoundPayments:
    """Payments of a round.

    Attributes:
        fee: tokens that each selected client pays.
        payments: tokens that each selected client gets.
        remarks: why a client gets less than its contribution.
    """

    fee: int
    payments: Mapping[int, int]
    remarks: Mapping[int, str]

    @property
    def balance(self) -> int:
        """Return what all clients together get and pay; always 0."""
        return sum(self.payments.values()) - self.fee * len(self.payments)


def compute_payments(
    selected: Sequence[int],
    contributions: Mapping[int, ClientContribution],
    fee: int,
    claims: Mapping[int, int] | None = None,
) -> RoundPayments:
    """Compute the payments of a round.

    Args:
        selected: clients that the round selected.
        contributions: contributions of those whose answers were accepted.
        fee: tokens that each selected client pays, at least 0.
        claims: tokens that clients claim; a client without a claim gets what it has earned.

    Examples:
        >>> found = {1: ClientContribution(3.0), 2: ClientContribution(-1.0)}
        >>> compute_payments([1, 2], found, fee=10).payments
        {1: 20, 2: 0}
    """
    pot, given = fee * len(selected), claims or {}
    weights = {
        each: max(contributions[each].value, 0.0) for each in selected if each in contributions
    }
    remarks: dict[int, str] = {}
    for client, claim in given.items():
        if client in weights and not 0 <= claim <= pot:
            weights[client] = 0.0
            remarks[client] = f"claimed {claim} of {pot} tokens"
    earned = divide_tokens(pot, weights)
    payments = dict(earned)
    for client, claim in given.items():
        if client in earned and client not in remarks:
            allowed = earned[client] + _round_error(contributions[client], weights, pot)
            if claim > allowed:
                payments[client] = max(earned[client] - (claim - earned[client]), 0)
                remarks[client] = f"claimed {claim} tokens for {earned[client]}"
            else:
                payments[client] = min(earned[client], claim)
    left = pot - sum(payments.values())
    honest = {
        each: weights[each]
        for each, paid in payments.items()
        if each not in remarks and paid == earned[each] and weights[each] > 0
    }
    # Nobody has earned what is left if nobody helped, so everybody gets a part of its fee back.
    extra = divide_tokens(left, honest or dict.fromkeys(selected, 1.0))
    everybody = {each: payments.get(each, 0) + extra.get(each, 0) for each in selected}
    return RoundPayments(fee, everybody, remarks)


def divide_tokens(tokens: int, weights: Mapping[int, float]) -> dict[int, int]:
    """Divide tokens in proportion to weights, each part rounded to a whole token.

    The largest remainders are rounded up, so the parts add up to the tokens. They are all 0 if no
    weight is positive.

    Examples:
        >>> divide_tokens(10, {1: 1.0, 2: 1.0, 3: 1.0})
        {1: 4, 2: 3, 3: 3}
    """
    whole = math.fsum(weights.values())
    if whole <= 0:
        return dict.fromkeys(weights, 0)
    exact = {each: tokens * (weight / whole) for each, weight in weights.items()}
    parts = {each: math.floor(part) for each, part in exact.items()}
    missing = tokens - sum(parts.values())
    for each in sorted(weights, key=lambda each: (parts[each] - exact[each], each))[:missing]:
        parts[each] += 1
    return parts


def _round_error(contribution: ClientContribution, weights: Mapping[int, float], pot: int) -> int:
    """Return the tokens by which a claim may exceed a payment, as contributions are inexact."""
    whole = math.fsum(weights.values())
    if whole <= 0 or not math.isfinite(contribution.error):
        return pot
    return math.ceil(ERRORS_ALLOWED * contribution.error / whole * pot)
