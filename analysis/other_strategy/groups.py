"""Strategies whose ranks learn by themselves, played: those that average with a few others who are
ready, and those that wait for nobody.

partial_reduce (Luo et al., ASPLOS 2020; Miao et al., SIGMOD 2021): the first so many in line
average together. That groups must now and then join ranks whose models have long not mixed is left
out: it binds one group in many. ad_psgd (Lian et al., ICML 2018) and overlap_local_sgd (Wang et
al., ICASSP 2020) average beside the training: what is sent and received there takes nothing from a
step, as who has a share of a core has it for its steps' work, so that nothing but steps takes time.
"""

from __future__ import annotations

from functools import partial

from laggard.analysis.other_strategy.loop import Loop
from laggard.analysis.other_strategy.network import FRAMED
from laggard.analysis.other_strategy.scene import Played, Scene


class Alone:
    """Ranks that wait for nobody, until as much is learnt as in the run.

    Args:
        scene: what is played.
    """

    def __init__(self, scene: Scene) -> None:
        self.loop = Loop()
        self.steps = [0] * scene.world
        self._scene, self._learnt = scene, 0.0

    def play(self) -> Played:
        """Plays it."""
        for rank in range(self._scene.world):
            self._begin(rank)
        self.loop.run()
        return Played(self.loop.now_s, self.loop.now_s, tuple(self.steps))

    def _begin(self, rank: int) -> None:
        work, step = self._scene.work, self.steps[rank]
        self.steps[rank] += 1
        self.loop.at(
            work.ranks[rank].done(self.loop.now_s, step, work.share(step)),
            partial(self._computed, rank),
        )

    def _computed(self, rank: int) -> None:
        self._end(rank)

    def _end(self, rank: int) -> None:
        self._learnt += self._scene.work.share(self.steps[rank] - 1)
        self.loop.over = self._learnt >= self._scene.work.goal * (1.0 - 1e-6)
        if not self.loop.over:
            self._begin(rank)


class PartialReduce(Alone):
    """Groups of those who are ready; the lowest rank makes them.

    Args:
        scene: what is played.
        size: of a group.
    """

    def __init__(self, scene: Scene, size: int) -> None:
        super().__init__(scene)
        self._size = min(size, scene.world)
        self._line: list[int] = []

    def _computed(self, rank: int) -> None:
        self.loop.at(self.loop.now_s + self._way_s(rank, 0), partial(self._ask, rank))

    def _ask(self, rank: int) -> None:
        self._line.append(rank)
        if len(self._line) < self._size:
            return
        members, self._line = self._line, []
        told_s = self.loop.now_s + max(self._way_s(0, member) for member in members)
        over_s = told_s + self._average_s(members, told_s)
        for member in members:
            self.loop.at(over_s, partial(self._end, member))

    def _average_s(self, members: list[int], at_s: float) -> float:
        """A ring of the members: 2 (n - 1) rounds, in each of which all send an n-th on; the
        slowest holds up all.
        """
        scene, count = self._scene, len(members)
        if count < 2:
            return 0.0
        ring = scene.network.ring([scene.hosts[member] for member in members], at_s)
        rounds_s = []
        for place, hop in enumerate(ring):
            handled_s = scene.packing_s(members[place], 1 / count) + scene.packing_s(
                members[place - 1], 1 / count
            )
            wire_s = scene.message_bytes / count * FRAMED * 8e-6 / hop.rate_mbps + hop.rtt_ms / 2e3
            rounds_s.append(handled_s + wire_s)
        return 2 * (count - 1) * max(rounds_s)

    def _way_s(self, src: int, dst: int) -> float:
        scene = self._scene
        return scene.network.hop((scene.hosts[src], scene.hosts[dst]), self.loop.now_s).rtt_ms / 2e3
