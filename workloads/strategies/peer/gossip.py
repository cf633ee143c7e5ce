"""Decentralized parallel SGD: each rank averages its model with its neighbors' models.

It needs neither a server nor collectives. X. Lian et al., "Can Decentralized Algorithms Outperform
Centralized Algorithms? A Case Study for Decentralized Parallel Stochastic Gradient Descent", NIPS
2017, algorithm 1. It is Hop without any slack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from laggard.core.rules.graph import Graph
from laggard.core.rules.hop import NeighborBounds
from laggard.workloads.strategies.base.parameters import PeerParameters
from laggard.workloads.strategies.peer.hop import HopStrategy

if TYPE_CHECKING:
    from laggard.workloads.strategies.base.strategy import TrainingContext


class GossipParameters(PeerParameters):
    """Parameters of `gossip`: in each step every rank averages its model with its neighbors'.

    This is D-PSGD (Lian et al., NIPS 2017).
    """

    reference: ClassVar[str] = "D-PSGD: Lian et al., NIPS 2017"
    summary: ClassVar[str] = (
        "no server: in each step every worker averages its model with the models of its "
        "neighbors in the `graph` (`ring` or `complete`)"
    )
    name: Literal["gossip"]
    graph: Graph = Field(default="ring", description="graph of the neighbors")

    def create_worker(self, context: TrainingContext) -> HopStrategy:
        """Create one rank's side (see `Parameters`)."""
        return HopStrategy(NeighborBounds(self.graph), context)
