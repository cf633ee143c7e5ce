"""Samples of the clients of a federated training: each has its own, and trains on all of them."""

from __future__ import annotations

from dataclasses import dataclass

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
        own = self._list_own(rank)
        order = np.random.default_rng((self.seed, step, rank)).permutation(len(own))
        return Share(own[order], self.samples, self.world_size)

    def list_usual_batch(self, rank: int) -> Indices:
        """Return samples of one pass of a client."""
        return self._list_own(rank)[: self.local_batch]

    def samples_in(self, step: int) -> int:  # noqa: ARG002
        """Return the number of samples of all clients together."""
        return self.samples

    def _list_own(self, client: int) -> Indices:
        if self.owners is not None:
            return np.flatnonzero(self.owners == client)
        order = np.random.default_rng((self.seed, 0)).permutation(self.samples)
        sizes = split_evenly(self.samples, self.world_size)
        first = sum(sizes[:client])
        return np.sort(order[first : first + sizes[client]])
