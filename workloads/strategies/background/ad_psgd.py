"""Asynchronous decentralized parallel SGD: a background thread averages models in pairs.

No rank waits for another. X. Lian et al., "Asynchronous Decentralized Parallel Stochastic Gradient
Descent", ICML 2018: algorithm 1, and the threads and the bipartite graph of the section on
implementation.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.graph import Graph
from laggard.core.units import DurationS
from laggard.workloads.strategies.background.background_exchange import BackgroundExchange
from laggard.workloads.strategies.background.pair_exchange import PairExchange
from laggard.workloads.strategies.base.parameters import BackgroundParameters
from laggard.workloads.transport.frames import Message

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


class ADPSGDParameters(BackgroundParameters):
    """Parameters of `ad_psgd`: a background thread averages the models of pairs of workers.

    No worker waits for another (AD-PSGD: Lian et al., ICML 2018).
    """

    reference: ClassVar[str] = "AD-PSGD: Lian et al., ICML 2018"
    summary: ClassVar[str] = (
        "no server and no waiting: a background thread averages the models of random pairs of "
        "workers"
    )
    name: Literal["ad_psgd"]
    graph: Graph = Field(
        default="complete", description="graph of the neighbors that may average in pairs"
    )
    timeout_s: DurationS = Field(
        default=10.0,
        gt=0,
        alias="timeout",
        description="longest wait for one partner before another one is tried",
    )

    def create_worker(self, context: TrainingContext) -> ADPSGD:
        """Create one rank's side (see `Parameters`)."""
        return ADPSGD(self, context)


class ADPSGD(BackgroundExchange):
    """Worker of `ad_psgd`: x_i <- x_i - lr * g_i(the x_i that was read).

    Meanwhile x_i, x_j <- (x_i + x_j) / 2 for random pairs (see `pair_exchange.py`). An active rank
    begins one exchange per update of its own, or fewer if an exchange takes longer than an update.

    Args:
        parameters: graph and time-out.
        context: training context of the rank.
    """

    def __init__(self, parameters: ADPSGDParameters, context: TrainingContext) -> None:
        super().__init__(context)
        self._pair_exchange = PairExchange(
            context, parameters.graph, parameters.timeout_s, self._current, self._lock
        )
        self._reset_members({context.rank, *self._present})

    def _reset_members(self, present: Collection[int]) -> None:
        self._pair_exchange.reset_members(present)

    def _on_member_joined(self, rank: int) -> None:
        self._pair_exchange.add_member(rank)

    def _on_step_done(self, _samples: int) -> None:
        self._pair_exchange.on_step_done()

    def _on_member_lost(self, rank: int) -> None:
        self._pair_exchange.remove_member(rank)

    def _exchange_models(self) -> None:
        self._pair_exchange.begin()

    def _on_message(self, message: Message) -> None:
        self._pair_exchange.receive(message)
