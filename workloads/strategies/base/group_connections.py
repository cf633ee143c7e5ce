"""Connections of a process group, opened before training and only where its collectives need them.

Gloo's default opens a connection between every two ranks, one after another on each rank. Over
emulated links, each takes at least one round trip, so a hundred ranks need minutes. With
`LAZY_VARIABLE` set, gloo opens a connection when a rank first uses it. The functions here use each
needed connection once, all at the same time, so that no training step waits for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch.distributed as dist

LAZY_VARIABLE = "TORCH_GLOO_LAZY_INIT"
"""Environment variable that makes gloo open connections on first use."""


def find_collective_peers(place: int, size: int) -> tuple[int, ...]:
    """Return the places that gloo's collectives connect a place of a group with, in order.

    All-reduce and all-gather pass data around a ring. Broadcasts from place 0 go down a binomial
    tree, in which a place's parent is the place without its highest bit
    (https://github.com/pytorch/gloo: allreduce.cc, allgather.cc, broadcast.cc).
    """
    ring = {(place + 1) % size, (place - 1) % size}
    bits = [1 << i for i in range(size.bit_length())]
    children = {place + bit for bit in bits if place < bit and place + bit < size}
    parent = {place - (1 << place.bit_length() - 1)} if place else set()
    return tuple(sorted((ring | children | parent) - {place}))


def connect_collectives(
    ranks: Sequence[int], rank: int, group: dist.ProcessGroup | None = None
) -> None:
    """Open the connections that all-reduce, all-gather and broadcasts from the first rank use.

    Args:
        ranks: ranks of the group, in its order.
        rank: number of this rank, which must be one of them.
        group: the group; None is the default group of all ranks.
    """
    peers = find_collective_peers(ranks.index(rank), len(ranks))
    _exchange_tokens([ranks[peer] for peer in peers], group)


def connect_to_all(ranks: Sequence[int], rank: int) -> None:
    """Open a connection to every other rank, which all-to-all exchanges use."""
    _exchange_tokens([other for other in ranks if other != rank], None)


def _exchange_tokens(peers: Iterable[int], group: dist.ProcessGroup | None) -> None:
    """Send a number to each peer and receive one from each, so that all connections are in use."""
    import torch
    import torch.distributed as dist

    # Pending transfers need their tensors, so the list keeps them until the last one is done.
    tokens = {peer: (torch.zeros(1), torch.zeros(1)) for peer in peers}
    pending = [dist.isend(sent, peer, group=group) for peer, (sent, _) in tokens.items()]
    pending += [dist.irecv(received, peer, group=group) for peer, (_, received) in tokens.items()]
    for work in pending:
        if work is not None:
            work.wait()
