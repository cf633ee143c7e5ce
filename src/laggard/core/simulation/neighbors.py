"""Gossip and Hop, simulated message by message.

Ranks send their models to neighbors when a step begins, and wait for the neighbors' models when it
ends. gossip (Lian et al., NIPS 2017) waits for all neighbors' models of the same step. hop (Luo et
al., ASPLOS 2019) accepts models of up to `staleness` steps ago and waits for all but `backups` of
them. It is never more than `max_iteration_gap` steps ahead of a neighbor, and skips up to `skip`
steps when all neighbors are further ahead. Sends and receives during computation do not slow it
down, because the share of a core is reserved for the work of steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from laggard.core.simulation.event_loop import EventLoop
from laggard.core.simulation.message_flows import MessageFlows
from laggard.core.simulation.training import SimulationInput, SimulationResult


@dataclass(frozen=True)
class NeighborBounds:
    """Limits on the distance between a rank and its neighbors; the defaults are those of gossip."""

    complete: bool = False
    staleness: int = 0
    backups: int = 0
    skip: int = 0
    max_iteration_gap: int = 1_000_000_000


def simulate_neighbors(sim_input: SimulationInput, bounds: NeighborBounds) -> SimulationResult:
    """Simulate a training until as many samples are processed as in the run."""
    training = _NeighborSimulation(sim_input, bounds)
    training.run()
    return SimulationResult(
        training.loop.now_s, training.loop.now_s, tuple(rank.steps for rank in training.ranks)
    )


class _RankState:
    """State of a rank: its step, and its knowledge of each neighbor.

    `known` has the newest step that each neighbor is known to have begun. `received` has the steps
    of the models that the rank holds of each neighbor.
    """

    def __init__(self, neighbors: tuple[int, ...]) -> None:
        self.neighbors = neighbors
        self.step = self.steps = 0
        self.known = dict.fromkeys(neighbors, -1)
        self.received: dict[int, set[int]] = {each: set() for each in neighbors}
        self.ready = False


class _NeighborSimulation:
    def __init__(self, sim_input: SimulationInput, bounds: NeighborBounds) -> None:
        world = sim_input.world
        self.loop = EventLoop()
        self._input, self._bounds = sim_input, bounds
        self._flows = MessageFlows(self.loop, sim_input.network)
        self._samples_learned = 0.0
        everybody = [tuple(q for q in range(world) if q != rank) for rank in range(world)]
        ring = [
            tuple(sorted({(rank - 1) % world, (rank + 1) % world} - {rank}))
            for rank in range(world)
        ]
        self.ranks = [
            _RankState(neighbors) for neighbors in (everybody if bounds.complete else ring)
        ]

    def run(self) -> None:
        for rank in range(self._input.world):
            self._begin(rank)
        self.loop.run()

    def _begin(self, rank: int) -> None:
        state, sim_input, now_s = self.ranks[rank], self._input, self.loop.now_s
        work, packing_s = sim_input.work.ranks[rank], sim_input.packing_s(rank)
        packed = 0
        for other in state.neighbors:
            # A neighbor that is known to be farther ahead has no use for this model, so only the
            # step number is sent.
            carries_model = state.known[other] <= state.step + self._bounds.staleness
            packed += carries_model
            self.loop.schedule(
                work.compute_end_s(now_s, packed * packing_s),
                partial(self._send, rank, other, state.step, carries_model),
            )
        done_s = work.compute_finish_s(now_s, state.steps, sim_input.work.rank_samples(state.step))
        state.steps += 1
        self.loop.schedule(done_s, partial(self._on_computed, rank))

    def _send(self, rank: int, other: int, step: int, carries_model: bool) -> None:
        sim_input = self._input
        size = sim_input.message_bytes if carries_model else 0.0
        self._flows.send(
            sim_input.hosts[rank],
            sim_input.hosts[other],
            size,
            partial(self._on_arrival, rank, other, step, carries_model),
        )

    def _on_arrival(self, rank: int, other: int, step: int, carries_model: bool) -> None:
        # A waiting rank unpacks a message at once, which takes time. While it computes, unpacking
        # is free (see the module's docstring).
        if self.ranks[other].ready:
            unpacked_s = self._input.work.ranks[other].compute_end_s(
                self.loop.now_s, self._input.packing_s(other) * carries_model
            )
            self.loop.schedule(unpacked_s, partial(self._receive, rank, other, step, carries_model))
        else:
            self._receive(rank, other, step, carries_model)

    def _receive(self, rank: int, other: int, step: int, carries_model: bool) -> None:
        state = self.ranks[other]
        state.known[rank] = max(state.known[rank], step)
        if carries_model:
            # With staleness, only the newest model is ever used.
            if self._bounds.staleness:
                state.received[rank].clear()
            state.received[rank].add(step)
        self._try_end_step(other)

    def _on_computed(self, rank: int) -> None:
        self.ranks[rank].ready = True
        self._try_end_step(rank)

    def _try_end_step(self, rank: int) -> None:
        state, bounds = self.ranks[rank], self._bounds
        known = state.known.values()
        come = sum(each >= state.step - bounds.staleness for each in known)
        needed = max(len(known) - bounds.backups, min(1, len(known)))
        if (
            not state.ready
            or come < needed
            or any(each < state.step + 1 - bounds.max_iteration_gap for each in known)
        ):
            return
        self._samples_learned += self._input.work.rank_samples(state.step)
        if self._samples_learned >= self._input.work.goal * (1.0 - 1e-6):
            self.loop.is_stopped = True
            return
        state.ready = False
        self._take_models(state)
        self._begin(rank)

    def _take_models(self, state: _RankState) -> None:
        """End a step: choose the next step and drop the models that are used or too old.

        The next step is the following one, or a later one if all neighbors are further ahead.
        """
        bounds, following = self._bounds, state.step + 1
        reached = min(
            (max(received, default=-1) for received in state.received.values()), default=-1
        )
        following = max(following, min(reached, following + bounds.skip))
        for received in state.received.values():
            usable = [each for each in received if each >= following - 1 - bounds.staleness]
            taken = (max if bounds.staleness else min)(usable, default=-1)
            received -= {
                each for each in received if each <= taken or each < following - bounds.staleness
            }
        state.step = following
