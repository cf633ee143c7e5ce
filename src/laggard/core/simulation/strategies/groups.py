"""Simulated strategies whose ranks learn independently, alone or with a few ready ranks.

In partial_reduce (Luo et al., ASPLOS 2020; Miao et al., SIGMOD 2021) ready ranks queue, and the
strategy's own rule forms groups of them. ad_psgd (Lian et al., ICML
2018) and overlap_local_sgd (Wang et al., ICASSP 2020) average in the background. Their sends and
receives do not slow down a step, because the share of a core is reserved for the work of steps. So
only steps take time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from laggard.core.cost_model.collectives import compute_ring_average_s
from laggard.core.rules.partial_reduce import create_group_rule
from laggard.core.simulation.event_training import EventTraining
from laggard.core.simulation.training import SimulationInput


class IndependentRanks(EventTraining):
    """Ranks that wait for no other."""

    def begin(self, rank: int) -> None:
        """Begin the next step of a rank."""
        work, step = self.sim_input.work, self.steps[rank]
        self.steps[rank] += 1
        self.loop.schedule(
            work.ranks[rank].compute_finish_s(self.loop.now_s, step, work.rank_samples(step)),
            partial(self._on_computed, rank),
        )

    def _on_computed(self, rank: int) -> None:
        self._end(rank)

    def _end(self, rank: int) -> None:
        if not self.learn(self.sim_input.work.rank_samples(self.steps[rank] - 1)):
            self.begin(rank)


class PartialReduceSimulation(IndependentRanks):
    """Groups of ready ranks, which rank 0 forms.

    Args:
        sim_input: training to simulate.
        size: number of ranks in a group.
        rounds: steps after which groups join ranks whose models have not mixed.
    """

    def __init__(self, sim_input: SimulationInput, size: int, rounds: int) -> None:
        super().__init__(sim_input)
        self._rule = create_group_rule(range(sim_input.world), size, rounds)

    def _on_computed(self, rank: int) -> None:
        self.loop.schedule(
            self.loop.now_s + self._get_latency_s(rank, 0), partial(self._join_queue, rank)
        )

    def _join_queue(self, rank: int) -> None:
        for group in self._rule.ready(rank):
            # Rank 0 notifies all members; the average starts when the last one knows.
            notified_s = self.loop.now_s + max(
                self._get_latency_s(0, member) for member in group.members
            )
            finished_s = notified_s + self._compute_average_s(group.members, notified_s)
            for member in group.members:
                self.loop.schedule(finished_s, partial(self._end, member))

    def _compute_average_s(self, members: Sequence[int], at_s: float) -> float:
        """Return the seconds of an average over a ring of the members."""
        sim_input = self.sim_input
        if len(members) < 2:
            return 0.0
        ring = sim_input.network.ring([sim_input.hosts[member] for member in members], at_s)
        handling_s = [sim_input.packing_s(member, len(members)) for member in members]
        return compute_ring_average_s(ring, sim_input.wire_bytes, handling_s)

    def _get_latency_s(self, src: int, dst: int) -> float:
        hosts = self.sim_input.hosts
        return self.sim_input.network.hop((hosts[src], hosts[dst]), self.loop.now_s).message_s(0.0)
