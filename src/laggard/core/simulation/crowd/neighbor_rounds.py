"""Workers that exchange models with two neighbors in a ring, with arrays over workers (`gossip`).

A worker sends its model to both neighbors when a step begins, and ends the step when it has
computed and has the models of both, as `HopRule` says with the bounds of gossip.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import require_quantity
from laggard.core.errors import InputError
from laggard.core.simulation.crowd.workers import (
    CONSTANT,
    Crowd,
    CrowdResult,
    CrowdSteps,
    Slowness,
    require_steps,
)

_KEPT = 1001
"""Ends of a step that are kept: all of few workers, and quantiles of many."""


@dataclass(frozen=True)
class NeighborLinks:
    """Equal links of neighboring workers of a ring, in one direction.

    Attributes:
        senders: workers that send, one after another; the receiver is the next one, or the one
            before.
        message_s: seconds of a message, without the delay.
        delay_s: seconds that the last byte of a message travels.
        slowness: slowness of messages.
    """

    senders: slice
    message_s: float
    delay_s: float = 0.0
    slowness: Slowness = CONSTANT

    def __post_init__(self) -> None:
        require_quantity("message_s", self.message_s, "give the seconds of a message")
        require_quantity("delay_s", self.delay_s, "give 0 for none")


def simulate_ring_neighbors(
    crowd: Crowd,
    forward: Sequence[NeighborLinks],
    backward: Sequence[NeighborLinks],
    steps: int,
    rng: np.random.Generator,
) -> CrowdResult:
    """Simulate a training with `gossip` on a ring.

    Args:
        crowd: the workers, in the order of the ring.
        forward: links from each worker to the next one; the last sends to the first.
        backward: links from each worker to the one before.
        steps: mean number of steps of a worker.
        rng: source of the durations of steps.

    Raises:
        InputError: there is no step, or there are fewer than three workers.

    Examples:
        >>> import numpy as np
        >>> from laggard.core.simulation.crowd.workers import CrowdClass
        >>> crowd = Crowd((CrowdClass("edge", 9, 1.0),))
        >>> links = [NeighborLinks(slice(0, 9), message_s=1.5)]
        >>> rng = np.random.default_rng(1)
        >>> simulate_ring_neighbors(crowd, links, links, 4, rng).makespan_s
        6.0
    """
    require_steps(steps)
    if crowd.workers < 3:
        raise InputError(f"{crowd.workers} workers are no ring — give three or more")
    # Messages go to the neighbor of the lower rank first. Both neighbors of the last rank are lower
    # ones of which the first rank is the lower, and those of the first rank are both higher.
    is_end = np.zeros(crowd.workers)
    is_end[0] = is_end[-1] = 1.0
    taken, begins_s = CrowdSteps(crowd, rng), np.zeros(crowd.workers)
    ends = _StepEnds(crowd.workers, steps)
    # Workers far from the slowest go on until all together have taken enough steps.
    while not ends.are_enough:
        computed_s = taken.finish_s(begins_s)
        sent_back_s, sent_on_s = (
            _pack(crowd, begins_s, messages) for messages in (1.0 + is_end, 2.0 - is_end)
        )
        from_before_s = np.roll(_travel(forward, sent_on_s), 1)
        from_next_s = np.roll(_travel(backward, sent_back_s), -1)
        ends_s = computed_s
        for arrivals_s in (from_before_s, from_next_s):
            # A worker that waits unpacks a model at once, and one that computes does so for free.
            unpacked_s = _pack(crowd, arrivals_s, np.ones(crowd.workers))
            ends_s = np.maximum(ends_s, np.where(arrivals_s > computed_s, unpacked_s, computed_s))
        begins_s = ends_s
        ends.add(ends_s)
    shares = taken.computed_s / [each.workers for each in crowd.classes] / float(begins_s.mean())
    return CrowdResult(ends.makespan_s, steps * crowd.workers, np.minimum(shares, 1.0))


def _pack(crowd: Crowd, begins_s: FloatArray, messages: FloatArray) -> FloatArray:
    """Return when workers have packed, or unpacked, a number of messages, [workers]."""
    ends_s = np.empty_like(begins_s)
    for each, ranks in zip(crowd.classes, crowd.slices(), strict=True):
        seconds = each.packing_s * messages[ranks]
        ends_s[ranks] = each.slowness.stretch(begins_s[ranks], seconds)
    return ends_s


def _travel(links: Sequence[NeighborLinks], sent_s: FloatArray) -> FloatArray:
    """Return when the messages of all senders have arrived, [workers]."""
    arrivals_s = np.empty_like(sent_s)
    for each in links:
        passed_s = each.slowness.stretch(sent_s[each.senders], each.message_s)
        arrivals_s[each.senders] = passed_s + each.delay_s
    return arrivals_s


class _StepEnds:
    """Ends of the steps of all workers, of which `steps` of each are awaited.

    Args:
        workers: number of workers.
        steps: mean number of steps of a worker.

    Attributes:
        makespan_s: time at which all together have taken enough steps.
    """

    def __init__(self, workers: int, steps: int) -> None:
        self.makespan_s = np.inf
        self._workers, self._steps = workers, steps
        self._least_s: list[float] = []
        self._ends: list[FloatArray] = []

    @property
    def are_enough(self) -> bool:
        """Return whether no further step of any worker ends before the makespan."""
        return bool(self._least_s) and self._least_s[-1] >= self.makespan_s

    def add(self, ends_s: FloatArray) -> None:
        """Add the ends of the next step of every worker, [workers]."""
        ordered = np.sort(ends_s)
        self._least_s.append(float(ordered[0]))
        kept = min(self._workers, _KEPT)
        places = np.linspace(0, self._workers - 1, kept)
        self._ends.append(ordered[np.round(places).astype(np.int64)])
        if len(self._ends) >= self._steps:
            # As many kept ends are over as there are steps of as many workers as are kept.
            all_ends = np.concatenate(self._ends)
            wanted = self._steps * kept
            self.makespan_s = float(np.partition(all_ends, wanted - 1)[wanted - 1])
