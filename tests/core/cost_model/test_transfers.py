"""Transfers of collectives: the demand against the exchange played message by message."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.cost_model.transfers import (
    LinkOffer,
    compute_peer_transfer,
    compute_ring_transfer,
    compute_server_transfer,
    compute_tree_transfer,
)
from laggard.core.errors import InputError

PAYLOAD, WORKERS = st.floats(1.0, 1e9), st.integers(1, 40)
LINKS = st.builds(LinkOffer, st.floats(0.1, 1e5), st.floats(0.0, 500.0), st.integers(1, 8))


def send_s(link: LinkOffer, sent_bytes: float) -> float:
    """One message: its bits at the shared rate, then its way."""
    return sent_bytes * 8 / (link.rate_mbps * 1e6 / link.flows) + link.latency_ms / 1e3


@given(payload=PAYLOAD, workers=WORKERS, link=LINKS)
def test_a_ring_moves_every_part_to_every_worker(
    payload: float, workers: int, link: LinkOffer
) -> None:
    ready, rounds = [0.0] * workers, 0
    # Whose gradients each worker's copy of each part contains; then which copies are complete.
    held = [[{worker} for _ in range(workers)] for worker in range(workers)]
    while any(len(part) < workers for copies in held for part in copies):
        part_of = [(worker - rounds) % workers for worker in range(workers)]
        sent = [set(held[worker][part_of[worker]]) for worker in range(workers)]
        ready = [
            max(ready[worker], ready[worker - 1]) + send_s(link, payload / workers)
            for worker in range(workers)
        ]
        for worker in range(workers):
            held[(worker + 1) % workers][part_of[worker]] |= sent[worker]
        rounds += 1
    demand = compute_ring_transfer(payload, workers, link)
    assert demand.rounds == rounds
    assert demand.transfer_s + demand.latency_s == pytest.approx(max(ready))


@given(payload=PAYLOAD, workers=WORKERS, link=LINKS)
def test_a_tree_joins_two_by_two_and_back(payload: float, workers: int, link: LinkOffer) -> None:
    holders, total_s = workers, 0.0
    while holders > 1:
        holders -= holders // 2
        total_s += 2 * send_s(link, payload)
    demand = compute_tree_transfer(payload, workers, link)
    assert demand.transfer_s + demand.latency_s == pytest.approx(total_s)


@given(payload=PAYLOAD, workers=WORKERS, link=LINKS)
def test_a_server_receives_and_sends_all_over_one_link(
    payload: float, workers: int, link: LinkOffer
) -> None:
    on_wire_s = send_s(link, payload) - link.latency_ms / 1e3
    pushed_s = math.fsum([on_wire_s] * workers) + link.latency_ms / 1e3
    demand = compute_server_transfer(payload, workers, link)
    assert demand.transfer_s + demand.latency_s == pytest.approx(2 * pushed_s)


@given(payload=PAYLOAD, peers=st.integers(0, 9), link=LINKS)
def test_peers_receive_one_after_the_other_without_waiting(
    payload: float, peers: int, link: LinkOffer
) -> None:
    on_wire_s = send_s(link, payload) - link.latency_ms / 1e3
    demand = compute_peer_transfer(payload, peers, link)
    expected = peers * on_wire_s + (link.latency_ms / 1e3 if peers else 0.0)
    assert demand.transfer_s + demand.latency_s == pytest.approx(expected)


def test_one_worker_exchanges_nothing() -> None:
    link = LinkOffer(100.0, 5.0)
    for demand in (compute_ring_transfer(1e6, 1, link), compute_tree_transfer(1e6, 1, link)):
        assert (demand.sent_bytes, demand.rounds) == (0.0, 0)


@pytest.mark.parametrize("workers", [0, -1])
def test_an_exchange_has_workers(workers: int) -> None:
    for compute in (compute_ring_transfer, compute_tree_transfer, compute_server_transfer):
        with pytest.raises(InputError, match=rf"workers is {workers} and must be .* — give"):
            compute(1e6, workers, LinkOffer(100.0))


def test_a_link_without_rate_or_flows_is_refused() -> None:
    with pytest.raises(InputError, match=r"rate_mbps is 0.*greater than 0"):
        compute_ring_transfer(1e6, 4, LinkOffer(0.0))
    with pytest.raises(InputError, match=r"flows is 0.*greater than 0"):
        LinkOffer(100.0, flows=0)
