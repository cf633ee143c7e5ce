"""Samples of the clients of a federated training: each has its own, and trains on all of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from laggard.workloads.datasets.partition import Indices, Partition, Share, split_evenly


@dataclass(frozen=True)
class ClientPartition(Partition):
    """Assignment of a training set to clients.

    A step is a round, in which a client has all its samples once.

    Attributes:
        local_batch: samples that a client computes in one pass.
        owners: client that each sample belongs to, shape [samples]; None if they are divided evenly
            and by chance.
    """

    owners: Indices | None = None
    local_batch: int = 32

    @property
    def ends_with_step(self) -> bool:
        """Always true: rounds are counted, whatever number of samples they have."""
        return True

    def share(self, step: int, rank: int, sizes: object = None) -> Share:  # noqa: ARG002
        """Return a client's samples, in an order of the round and the client."""
        own = self.list_samples(rank)
        order = np.random.default_rng((self.seed, step, rank)).permutation(len(own))
        return Share(own[order], self.samples, self.world_size)

    def list_usual_batch(self, rank: int) -> Indices:
        """Return samples of one pass of a client."""
        return self.list_samples(rank)[: self.local_batch]

    def samples_in(self, step: int) -> int:  # noqa: ARG002
        """Return the number of samples of all clients together."""
        return self.samples

    def list_samples(self, client: int) -> Indices:
        """Return the samples of a client, in ascending order, shape [n]."""
        order, bounds = self._by_client
        return np.sort(order[bounds[client] : bounds[client + 1]])

    @cached_property
    def _by_client(self) -> tuple[Indices, Indices]:
        """All samples, those of a client together, and the place of the first one of each."""
        if self.owners is None:
            order = np.random.default_rng((self.seed, 0)).permutation(self.samples)
            sizes = split_evenly(self.samples, self.world_size)
            return order, np.cumsum([0, *sizes])
        order = np.argsort(self.owners, kind="stable")
        clients = np.arange(self.world_size + 1)
        return order, np.searchsorted(self.owners[order], clients)
