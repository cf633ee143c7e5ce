"""Asynchronous decentralised parallel SGD: ranks average their models two by two in a thread beside
the training, and wait for nobody.

X. Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient Descent", ICML 2018,
algorithm 1, and the threads and the bipartite graph of its section on implementation.
"""

from __future__ import annotations

from collections.abc import Collection

from laggard.workloads.strategies.beside_training import BesideTraining
from laggard.workloads.strategies.pairing import Pairing
from laggard.workloads.strategies.parameters import ADPSGDParameters
from laggard.workloads.strategies.strategy import Seat
from laggard.workloads.transport.frames import Message


class ADPSGD(BesideTraining):
    """x_i <- x_i - lr * g_i(x_i as it was read), and beside it x_i, x_j <- (x_i + x_j) / 2 for
    random pairs (see exchange.py).

    An active rank begins an exchange for each of its updates, or as many as there is time for.

    Args:
        parameters: graph and time-out.
        seat: what this rank trains with.
    """

    def __init__(self, parameters: ADPSGDParameters, seat: Seat) -> None:
        super().__init__(seat)
        self._pairing = Pairing(
            seat, parameters.graph, parameters.timeout_s, self._current, self._lock
        )
        self._meet({seat.rank, *self._there})

    def _meet(self, there: Collection[int]) -> None:
        self._pairing.meet(there)

    def _note_arrival(self, rank: int) -> None:
        self._pairing.admit(rank)

    def _note_step(self, _samples: int) -> None:
        self._pairing.note_step()

    def _note_loss(self, rank: int) -> None:
        self._pairing.leave(rank)

    def _exchange_models(self) -> None:
        self._pairing.begin()

    def _hear(self, message: Message) -> None:
        self._pairing.hear(message)
