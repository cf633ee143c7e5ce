"""The Gilbert model against its own chain, worked out by brute force."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.network_emulation.loss_bursts import (
    compute_gilbert_probabilities,
    least_burst_packets,
    variance_ratio,
)

LOSSES = st.floats(0.001, 0.999)
BURSTS = st.floats(1.01, 500)


@given(LOSSES, BURSTS)
def test_the_chain_loses_what_was_asked_for_in_runs_as_long_as_can_be(
    loss: float, burst: float
) -> None:
    chain = compute_gilbert_probabilities(loss, burst)
    assert chain is not None
    begins, ends = chain
    assert 0 < begins <= 1
    assert begins / (begins + ends) == pytest.approx(loss)
    assert 1 / ends == pytest.approx(max(burst, least_burst_packets(loss)))


@pytest.mark.parametrize(("loss", "burst"), [(0.0, 5.0), (1.0, 5.0), (0.3, 1.0), (0.99, 1.0)])
def test_other_losses_are_independent(loss: float, burst: float) -> None:
    assert compute_gilbert_probabilities(loss, burst) is None
    assert variance_ratio(loss, burst, 100) == 1.0


@given(LOSSES, BURSTS, st.integers(1, 60))
def test_the_variance_is_that_of_the_chain(loss: float, burst: float, packets: int) -> None:
    """Every pair of packets, k apart: P(both lost) by k steps of the chain from the bad state."""
    chain = compute_gilbert_probabilities(loss, burst)
    assert chain is not None
    begins, ends = chain
    lost_again, variance = 1.0, packets * loss * (1 - loss)
    for apart in range(1, packets):
        lost_again = lost_again * (1 - ends) + (1 - lost_again) * begins
        variance += 2 * (packets - apart) * loss * (lost_again - loss)
    ratio = variance / (packets * loss * (1 - loss))
    assert variance_ratio(loss, burst, packets) == pytest.approx(ratio, rel=1e-6, abs=1e-6)


def test_many_packets_settle_at_the_mean_run_over_the_independent_one() -> None:
    """(1 + kept) / (1 - kept), 1 - kept = p + r: 1 % in bursts of 5 varies as the 8.9-fold."""
    assert variance_ratio(0.01, 5.0, 10**6) == pytest.approx(2 / (0.2 / 0.99) - 1, rel=1e-3)
    assert math.isclose(least_burst_packets(0.9), 9.0)
