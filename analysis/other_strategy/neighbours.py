"""Gossip and Hop, played message by message: ranks send their models to neighbours as a step
begins, and wait for theirs as it ends.

gossip (Lian et al., NIPS 2017) waits for all neighbours' models of the same step; hop (Luo et al.,
ASPLOS 2019) takes models of up to `staleness` steps ago, waits for all but `backups` of them, is
never `ahead` steps of anybody, and leaves up to `skip` steps out when all neighbours have gone
beyond. What is sent and received while a rank computes takes nothing from that: who has a share of
a core has it for its steps' work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from laggard.analysis.other_strategy.flows import Flows
from laggard.analysis.other_strategy.loop import Loop
from laggard.analysis.other_strategy.scene import Played, Scene


@dataclass(frozen=True)
class Bounds:
    """How far ranks may be from their neighbours; as it is, those of gossip."""

    complete: bool = False
    staleness: int = 0
    backups: int = 0
    skip: int = 0
    ahead: int = 1_000_000_000


def play_neighbours(scene: Scene, bounds: Bounds) -> Played:
    """Plays a training until as many samples are learnt from as in the run."""
    training = _Neighbours(scene, bounds)
    training.run()
    return Played(
        training.loop.now_s, training.loop.now_s, tuple(rank.steps for rank in training.ranks)
    )


class _Rank:
    """What a rank knows: the newest step that each neighbour is known to have begun, and the models
    that it holds of each.
    """

    def __init__(self, beside: tuple[int, ...]) -> None:
        self.beside = beside
        self.step = self.steps = 0
        self.known = dict.fromkeys(beside, -1)
        self.held: dict[int, set[int]] = {each: set() for each in beside}
        self.ready = False


class _Neighbours:
    def __init__(self, scene: Scene, bounds: Bounds) -> None:
        world = scene.world
        self.loop = Loop()
        self._scene, self._bounds = scene, bounds
        self._flows = Flows(self.loop, scene.network)
        self._learnt = 0.0
        everybody = [tuple(q for q in range(world) if q != rank) for rank in range(world)]
        ring = [
            tuple(sorted({(rank - 1) % world, (rank + 1) % world} - {rank}))
            for rank in range(world)
        ]
        self.ranks = [_Rank(beside) for beside in (everybody if bounds.complete else ring)]

    def run(self) -> None:
        for rank in range(self._scene.world):
            self._begin(rank)
        self.loop.run()

    def _begin(self, rank: int) -> None:
        state, scene, now_s = self.ranks[rank], self._scene, self.loop.now_s
        work, packing_s = scene.work.ranks[rank], scene.packing_s(rank)
        packed = 0
        for other in state.beside:
            takes = state.known[other] <= state.step + self._bounds.staleness
            packed += takes
            self.loop.at(
                work.after(now_s, packed * packing_s),
                partial(self._send, rank, other, state.step, takes),
            )
        done_s = work.done(now_s, state.steps, scene.work.share(state.step))
        state.steps += 1
        self.loop.at(done_s, partial(self._computed, rank))

    def _send(self, rank: int, other: int, step: int, takes: bool) -> None:
        scene = self._scene
        size = scene.message_bytes if takes else 0.0
        self._flows.send(
            scene.hosts[rank],
            scene.hosts[other],
            size,
            partial(self._come, rank, other, step, takes),
        )

    def _come(self, rank: int, other: int, step: int, takes: bool) -> None:
        if self.ranks[other].ready:  # it has nothing else to do than to take it
            unpacked_s = self._scene.work.ranks[other].after(
                self.loop.now_s, self._scene.packing_s(other) * takes
            )
            self.loop.at(unpacked_s, partial(self._hear, rank, other, step, takes))
        else:
            self._hear(rank, other, step, takes)

    def _hear(self, rank: int, other: int, step: int, takes: bool) -> None:
        state = self.ranks[other]
        state.known[rank] = max(state.known[rank], step)
        if takes:
            if self._bounds.staleness:  # only the newest is ever taken
                state.held[rank].clear()
            state.held[rank].add(step)
        self._end_if_may(other)

    def _computed(self, rank: int) -> None:
        self.ranks[rank].ready = True
        self._end_if_may(rank)

    def _end_if_may(self, rank: int) -> None:
        state, bounds = self.ranks[rank], self._bounds
        known = state.known.values()
        come = sum(each >= state.step - bounds.staleness for each in known)
        needed = max(len(known) - bounds.backups, min(1, len(known)))
        if (
            not state.ready
            or come < needed
            or any(each < state.step + 1 - bounds.ahead for each in known)
        ):
            return
        self._learnt += self._scene.work.share(state.step)
        if self._learnt >= self._scene.work.goal * (1.0 - 1e-6):
            self.loop.over = True
            return
        state.ready = False
        self._take_models(state)
        self._begin(rank)

    def _take_models(self, state: _Rank) -> None:
        """A step ends: the next is that behind it, or where all neighbours have gone beyond,
        theirs.
        """
        bounds, following = self._bounds, state.step + 1
        reached = min((max(held, default=-1) for held in state.held.values()), default=-1)
        following = max(following, min(reached, following + bounds.skip))
        for held in state.held.values():
            usable = [each for each in held if each >= following - 1 - bounds.staleness]
            taken = (max if bounds.staleness else min)(usable, default=-1)
            held -= {each for each in held if each <= taken or each < following - bounds.staleness}
        state.step = following
