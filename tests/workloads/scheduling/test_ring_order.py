"""Orders of rings: against an independent search, shared links counted, never worse than given."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.links import NetworkHop
from laggard.core.errors import InputError
from laggard.workloads.scheduling.ring_order import RingLinks, order_ring
from laggard.workloads.scheduling.ring_placement import place_ring

PART_BYTES = 1e5


def links_of(rate_mbps: np.ndarray, rtt_ms: float = 0.0) -> RingLinks:
    return RingLinks(hops_of(rate_mbps, rtt_ms), {}, (), PART_BYTES)


def hops_of(rate_mbps: np.ndarray, rtt_ms: float) -> list[list[NetworkHop | None]]:
    return [
        [
            None if here == there else NetworkHop((str(here), str(there)), rate, rtt_ms)
            for there, rate in enumerate(row)
        ]
        for here, row in enumerate(rate_mbps.tolist())
    ]


def draw_rates(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    rates = rng.integers(1, 30, (count, count)).astype(np.float64)
    return np.minimum(rates, rates.T)


@pytest.mark.parametrize("count", range(3, 9))
@pytest.mark.parametrize("seed", range(4))
def test_without_delays_the_slowest_link_is_that_of_a_search_for_cycles(
    count: int, seed: int
) -> None:
    rates = draw_rates(count, seed)
    order = order_ring(links_of(rates))
    slowest = min(rates[a, b] for a, b in zip(order, (*order[1:], order[0]), strict=True))
    assert slowest == place_ring(rates, count).rate


@given(count=st.integers(3, 24), seed=st.integers(0, 1000), rtt_ms=st.floats(0, 100))
def test_an_order_has_every_host_once_the_first_one_first_and_is_never_worse(
    count: int, seed: int, rtt_ms: float
) -> None:
    links = links_of(draw_rates(count, seed), rtt_ms)
    order = order_ring(links)
    assert sorted(order) == list(range(count))
    assert order[0] == 0
    found, listed = links.compute_parts_s(order), links.compute_parts_s(range(count))
    assert max(found) <= max(listed)


def test_equal_links_keep_the_order_as_given() -> None:
    assert order_ring(links_of(np.full((12, 12), 10.0), 5.0)) == tuple(range(12))


@pytest.mark.parametrize("each", [3, 7])
def test_a_link_between_two_sites_is_crossed_once_in_each_direction(each: int) -> None:
    # Hosts of both sites alternate in the given order, and all transfers share one link.
    count = 2 * each
    cable = {(a, b): a % 2 for a in range(count) for b in range(count) if a % 2 != b % 2}
    links = RingLinks(
        hops_of(np.full((count, count), 1000.0), 0.0), cable, (100.0, 100.0), PART_BYTES
    )
    as_given = max(links.compute_parts_s(range(count)))
    order = order_ring(links)
    crossings = [a % 2 != b % 2 for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    assert sum(crossings) == 2
    assert as_given / max(links.compute_parts_s(order)) == pytest.approx(each)


def test_transfers_take_as_long_as_the_cost_model_says() -> None:
    links = links_of(np.full((3, 3), 20.0), 60.0)
    hop = NetworkHop(("a", "b"), 20.0, 60.0)
    assert links.compute_parts_s(range(3)) == pytest.approx([hop.part_s(PART_BYTES)] * 3)


def test_values_that_are_no_square_are_refused() -> None:
    links = RingLinks(hops_of(np.ones((3, 2)), 0.0), {}, (), PART_BYTES)
    with pytest.raises(InputError, match="a ring of 3 hosts: give a square"):
        order_ring(links)
