"""Strategies with a server, played message by message: workers push gradients, and a rule says when
they count and who gets the model.

The server does one thing after the other; with a worker on its host it has one share of a core.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Protocol

from laggard.analysis.other_strategy.flows import Flows
from laggard.analysis.other_strategy.loop import Action, Loop
from laggard.analysis.other_strategy.processor import Processor
from laggard.analysis.other_strategy.repeated import steady
from laggard.analysis.other_strategy.scene import Played, Scene


class ServerRule(Protocol):
    """When a gradient counts, and who goes on."""

    def push(
        self, rank: int, step: int
    ) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
        """A rank's gradient of a step has come: which (rank, step) count now, and which ranks begin
        which steps.
        """


class StalenessRule:
    """Nobody is more than `staleness` steps ahead of the slowest (Ho et al., NIPS 2013); 0 is a
    parameter server in step, None waits for nobody.

    Args:
        world: number of ranks.
        staleness: the bound.
    """

    def __init__(self, world: int, staleness: int | None) -> None:
        self._next, self._staleness = [0] * world, staleness
        self._held: list[tuple[int, int]] = []
        self._waiting: set[int] = set()

    def push(
        self, rank: int, step: int
    ) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
        """See `ServerRule`."""
        self._next[rank] = step + 1
        self._waiting.add(rank)
        self._held.append((rank, step))
        bound = float("inf") if self._staleness is None else min(self._next) + self._staleness
        count = [each for each in self._held if each[1] < bound]
        self._held = [each for each in self._held if each[1] >= bound]
        go_on = sorted(each for each in self._waiting if self._next[each] <= bound)
        self._waiting -= set(go_on)
        return count, [(each, self._next[each]) for each in go_on]


class BackupRule:
    """Every step takes the first gradients that come, and drops those of the `backups` slowest
    (Chen et al. 2016).

    Args:
        world: number of ranks.
        backups: ranks that a step does not wait for.
    """

    def __init__(self, world: int, backups: int) -> None:
        self._needed, self._step = max(world - backups, 1), 0
        self._come: list[int] = []

    def push(
        self, rank: int, step: int
    ) -> tuple[Sequence[tuple[int, int]], Sequence[tuple[int, int]]]:
        """See `ServerRule`."""
        if step < self._step:
            return (), [(rank, self._step)]
        self._come.append(rank)
        if len(self._come) < self._needed:
            return (), ()
        come, self._come = sorted(self._come), []
        self._step += 1
        return [(each, step) for each in come], [(each, self._step) for each in come]


def play_served(scene: Scene, rule: ServerRule) -> Played:
    """Plays a training until as many samples count as in the run."""
    training = _Served(scene, rule)
    training.run()
    return Played(training.loop.now_s, training.loop.now_s, tuple(training.steps))


class _Served:
    def __init__(self, scene: Scene, rule: ServerRule) -> None:
        self.loop = Loop()
        self.steps = [0] * scene.world
        self._scene, self._rule = scene, rule
        self._flows = Flows(self.loop, scene.network)
        self._processors = [Processor(self.loop, rank) for rank in scene.work.ranks]
        beside = scene.hosts.index(scene.server) if scene.server in scene.hosts else None
        self._server = (
            Processor(self.loop, steady(0.0)) if beside is None else self._processors[beside]
        )
        self._to_serve: deque[tuple[float, Action]] = deque()
        self._learnt, self._serves = 0.0, False

    def run(self) -> None:
        for rank in range(self._scene.world):
            self._begin(rank, 0)
        self.loop.run()

    def _begin(self, rank: int, step: int) -> None:
        work, packing_s = self._scene.work, self._scene.packing_s(rank)
        seconds = work.ranks[rank].seconds(self.steps[rank], work.share(step))
        self.steps[rank] += 1
        self._processors[rank].do(seconds + packing_s, partial(self._push, rank, step))

    def _push(self, rank: int, step: int) -> None:
        scene = self._scene
        come = partial(self._serve, scene.server_packing_s, partial(self._apply, rank, step))
        self._flows.send(scene.hosts[rank], scene.server, scene.message_bytes, come)

    def _serve(self, seconds: float, then: Action) -> None:
        """The server does one thing after the other."""
        self._to_serve.append((seconds, then))
        if not self._serves:
            self._serve_next()

    def _serve_next(self) -> None:
        self._serves = bool(self._to_serve)
        if self._serves:
            seconds, then = self._to_serve.popleft()
            self._server.do(seconds, partial(self._served, then))

    def _served(self, then: Action) -> None:
        then()
        if not self.loop.over:
            self._serve_next()

    def _apply(self, rank: int, step: int) -> None:
        counts, go_on = self._rule.push(rank, step)
        self._learnt += sum(self._scene.work.share(each) for _, each in counts)
        if self._learnt >= self._scene.work.goal * (1.0 - 1e-6):
            self.loop.over = True
            return
        applying_s = self._scene.applying_s * len({each for _, each in counts})
        answers = [(self._scene.server_packing_s, partial(self._answer, *each)) for each in go_on]
        self._to_serve.extendleft(reversed([(applying_s, _nothing), *answers]))

    def _answer(self, rank: int, step: int) -> None:
        scene = self._scene
        self._flows.send(
            scene.server, scene.hosts[rank], scene.message_bytes, partial(self._come, rank, step)
        )

    def _come(self, rank: int, step: int) -> None:
        self._processors[rank].do(self._scene.packing_s(rank), partial(self._begin, rank, step))


def _nothing() -> None:
    """What follows from an update that nobody waits for."""
