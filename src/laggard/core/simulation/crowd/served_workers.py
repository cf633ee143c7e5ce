"""Workers that a server answers one by one, by any rule of a server, event by event.

For more workers than are played, each of the played ones stands for several, and the server takes
as many times longer for it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

import numpy as np

from laggard.core.errors import InputError
from laggard.core.rules.server_rule import Push, Reaction, ServerUpdateRule, Update
from laggard.core.simulation.crowd.absences import Absences
from laggard.core.simulation.crowd.server_rounds import CrowdServer
from laggard.core.simulation.crowd.workers import Crowd, CrowdResult, require_steps

MAX_PLAYED = 20_000
"""Largest number of workers that are played one by one."""

CreateRule = Callable[[int], ServerUpdateRule]
"""Function that creates the rule for a number of workers."""


def simulate_served_workers(
    crowd: Crowd,
    server: CrowdServer,
    steps: int,
    rng: np.random.Generator,
    create_rule: CreateRule,
) -> CrowdResult:
    """Simulate a training until its updates have as many gradients as `steps` of each worker.

    Args:
        crowd: the workers.
        server: the server.
        steps: mean number of steps of a worker.
        rng: source of the durations of steps.
        create_rule: rule of the server.

    Returns:
        The result, with an estimated error if only a part of the workers was played.

    Raises:
        InputError: there is no step, or all workers leave.

    Examples:
        >>> import numpy as np
        >>> from laggard.core.rules.bounded_staleness import BoundedStalenessRule
        >>> from laggard.core.simulation.crowd.workers import CrowdClass
        >>> crowd, rng = Crowd((CrowdClass("edge", 3, 1.0),)), np.random.default_rng(1)
        >>> rule_of = lambda workers: BoundedStalenessRule(workers, staleness=None)
        >>> simulate_served_workers(crowd, CrowdServer(0.0), 4, rng, rule_of).makespan_s
        4.0
    """
    require_steps(steps)
    if crowd.workers <= MAX_PLAYED:
        return _ServedWorkers(crowd, server, rng, 1, create_rule).run(steps)
    # Twice as many stand-ins halve the difference to the whole crowd, so that the difference
    # between the two is the error that is left.
    fewer, more = (
        _ServedWorkers(crowd, server, rng, math.ceil(crowd.workers / played), create_rule).run(
            steps
        )
        for played in (MAX_PLAYED // 2, MAX_PLAYED)
    )
    error = abs(fewer.makespan_s / more.makespan_s - 1)
    return CrowdResult(
        more.makespan_s, steps * crowd.workers, more.computed_share, relative_error=error
    )


class _ServedWorkers:
    """Workers and their server.

    Args:
        crowd: the workers.
        server: the server.
        rng: source of the durations of steps and of absences.
        each_for: number of workers that each played one stands for.
        create_rule: rule of the server.
    """

    def __init__(
        self,
        crowd: Crowd,
        server: CrowdServer,
        rng: np.random.Generator,
        each_for: int,
        create_rule: CreateRule,
    ) -> None:
        self._rng, self._server, self._each_for = rng, server, each_for
        counts = [max(1, round(each.workers / each_for)) for each in crowd.classes]
        self._counts = counts
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        self._places, self._classes = places, crowd.classes
        self._rule = create_rule(len(places))
        self._lives = [0] * len(places)
        self._computed_s = [0.0] * len(counts)
        self._free_s, self._learned_s, self._learned = 0.0, 0.0, 0
        # Time, number for ties, worker, its life, and its clock: a gradient. A departure has the
        # clock -1, an arrival -2.
        self._due: list[tuple[float, int, int, int, int]] = []
        self._sequence = 0

    def run(self, steps: int) -> CrowdResult:
        """Play until the updates have enough gradients."""
        for worker in range(len(self._places)):
            if self._is_here_at_start(worker):
                self._begin(worker, 0, 0.0)
            else:
                self._rule.remove_member(worker)
        wanted = steps * len(self._places)
        while self._due:
            at_s, _, worker, life, clock = heapq.heappop(self._due)
            if clock == _JOINS:
                self._await_absence(worker, at_s)
                self._answer(self._rule.add_member(worker), at_s)
            elif life != self._lives[worker]:
                continue
            elif clock == _LEAVES:
                self._lives[worker] += 1
                self._answer(self._rule.remove_member(worker), at_s)
            else:
                self._serve(worker, clock, at_s)
            if self._learned >= wanted:
                return self._build_result(steps)
        raise InputError(
            f"all workers have left after {self._free_s:.4g} s, and none joins again — give"
            " `back_after`, or longer lives"
        )

    def _build_result(self, steps: int) -> CrowdResult:
        shares = np.array(self._computed_s) / self._counts / self._learned_s
        workers = sum(each.workers for each in self._classes)
        return CrowdResult(self._learned_s, steps * workers, np.minimum(shares, 1.0))

    def _schedule(self, at_s: float, worker: int, clock: int) -> None:
        self._sequence += 1
        entry = (at_s, self._sequence, worker, self._lives[worker], clock)
        heapq.heappush(self._due, entry)

    def _is_here_at_start(self, worker: int) -> bool:
        """Await the first absence of a worker, and return whether it is present before that."""
        leaves_s = self._await_absence(worker, 0.0)
        return leaves_s > 0

    def _await_absence(self, worker: int, joined_s: float) -> float:
        """Schedule when a worker that has joined leaves, and joins again; return when it leaves."""
        absences: Absences | None = self._classes[self._places[worker]].absences
        if absences is None:
            return math.inf
        found = absences.find_next(np.array([joined_s]), self._rng)
        leaves_s, joins_s = (float(each[0]) for each in found)
        if joined_s < leaves_s < math.inf:
            self._schedule(leaves_s, worker, _LEAVES)
        if joins_s < math.inf:
            self._schedule(joins_s, worker, _JOINS)
        return leaves_s

    def _begin(self, worker: int, clock: int, at_s: float) -> None:
        workers = self._classes[self._places[worker]]
        duration_s = workers.step_s
        if workers.spread:
            duration_s *= math.exp(workers.spread * self._rng.standard_normal())
        end_s = workers.slowness.end_s(at_s, duration_s)
        self._computed_s[self._places[worker]] += end_s - at_s
        packed_s = workers.slowness.end_s(end_s, workers.packing_s)
        sent_s = workers.up_slowness.end_s(packed_s, workers.up_s)
        self._schedule(sent_s + workers.delay_s, worker, clock)

    def _serve(self, worker: int, clock: int, at_s: float) -> None:
        """Let the server take a gradient, and answer."""
        server = self._server
        service_s = self._each_for * max(server.packing_s, server.in_s)
        self._free_s = max(self._free_s, at_s) + service_s
        self._answer(self._rule.push(Push(worker, clock, 1, len(self._places))), self._free_s)

    def _answer(self, reaction: Reaction, at_s: float) -> None:
        """Count the gradients of the updates, and send the answers one after another."""
        self._learned += sum(len(update.pushes) for update in reaction.updates)
        if not reaction.replies and not reaction.updates:
            return
        server, each_for = self._server, self._each_for
        applied = sum(map(self._count_updates, reaction.updates))
        self._learned_s = max(self._free_s, at_s)
        sent_s = self._learned_s + server.applying_s * applied
        for reply in reaction.replies:
            sent_s += each_for * max(server.packing_s, server.out_s)
            workers = self._classes[self._places[reply.rank]]
            came_s = workers.down_slowness.end_s(sent_s, workers.down_s) + workers.delay_s
            unpacked_s = workers.slowness.end_s(came_s, workers.packing_s)
            self._begin(reply.rank, reply.clock, unpacked_s)
        self._free_s = sent_s

    def _count_updates(self, update: Update) -> int:
        """Return the number of updates that a played one stands for.

        A whole step of all workers is one update, whatever their number is.
        """
        return 1 if update.fraction >= 1 else self._each_for


_LEAVES, _JOINS = -1, -2
