"""Ranks that wait for messages of their neighbors, simulated message by message.

Ranks send their models to neighbors when a step begins, and wait for the neighbors' models when it
ends, by the rule that the workers of `gossip` and `hop` follow. Sends and receives during
computation do not slow it down, because the share of a core is reserved for the work of steps.
"""

from __future__ import annotations

from functools import partial

from laggard.core.rules.hop import HopBounds, HopRule
from laggard.core.simulation.event_training import EventTraining
from laggard.core.simulation.message_flows import MessageFlows
from laggard.core.simulation.training import SimulationInput


class NeighborSimulation(EventTraining):
    """Ranks that exchange models with their neighbors in a graph.

    Args:
        sim_input: training to simulate.
        bounds: graph and bounds.
    """

    def __init__(self, sim_input: SimulationInput, bounds: HopBounds) -> None:
        super().__init__(sim_input)
        self._flows = MessageFlows(self.loop, sim_input.network)
        # The model itself does not matter here, only whether it has arrived.
        self._rules: list[HopRule[None]] = [
            HopRule(rank, sim_input.world, bounds) for rank in range(sim_input.world)
        ]
        self._has_computed = [False] * sim_input.world

    def begin(self, rank: int) -> None:
        """Begin the next step of a rank."""
        rule, sim_input, now_s = self._rules[rank], self.sim_input, self.loop.now_s
        work, packing_s = sim_input.work.ranks[rank], sim_input.packing_s(rank)
        packed = 0
        for notice in rule.build_notices():
            packed += notice.with_model
            self.loop.schedule(
                work.compute_end_s(now_s, packed * packing_s),
                partial(self._send, rank, notice.rank, rule.step, notice.with_model),
            )
        samples = sim_input.work.rank_samples(rule.step)
        done_s = work.compute_finish_s(now_s, self.steps[rank], samples)
        self.steps[rank] += 1
        self.loop.schedule(done_s, partial(self._on_computed, rank))

    def _send(self, rank: int, other: int, step: int, with_model: bool) -> None:
        sim_input = self.sim_input
        self._flows.send(
            sim_input.hosts[rank],
            sim_input.hosts[other],
            sim_input.message_bytes if with_model else 0.0,
            partial(self._on_arrival, rank, other, step, with_model),
        )

    def _on_arrival(self, rank: int, other: int, step: int, with_model: bool) -> None:
        # A waiting rank unpacks a message at once, which takes time. While it computes, unpacking
        # is free (see the module's docstring).
        if self._has_computed[other]:
            unpacked_s = self.sim_input.work.ranks[other].compute_end_s(
                self.loop.now_s, self.sim_input.packing_s(other) * with_model
            )
            self.loop.schedule(unpacked_s, partial(self._receive, rank, other, step, with_model))
        else:
            self._receive(rank, other, step, with_model)

    def _receive(self, rank: int, other: int, step: int, with_model: bool) -> None:
        rule = self._rules[other]
        if with_model:
            rule.receive(rank, step, model=None)
        else:
            rule.announce(rank, step)
        self._try_end_step(other)

    def _on_computed(self, rank: int) -> None:
        self._has_computed[rank] = True
        self._try_end_step(rank)

    def _try_end_step(self, rank: int) -> None:
        rule = self._rules[rank]
        if not self._has_computed[rank] or not rule.can_end():
            return
        if self.learn(self.sim_input.work.rank_samples(rule.step)):
            return
        self._has_computed[rank] = False
        rule.end()
        self.begin(rank)
