"""Workers in lockstep around a server: bulk synchronous parallel, with arrays over workers.

Messages to the server share its link evenly and are then received one after another. The answers
leave in the order of ranks, as `BoundedStalenessRule` with a bound of 0 gives them, and share the
link out of the server.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.cost_model.demand import require_quantity
from laggard.core.errors import InputError
from laggard.core.simulation.crowd.absences import Attendance, BoolArray
from laggard.core.simulation.crowd.workers import (
    Crowd,
    CrowdClass,
    CrowdResult,
    CrowdSteps,
    require_steps,
)

MAX_ATTEMPTS = 1000
"""Largest number of times that workers join within one round."""
MAX_MESSAGES = 20_000
"""Largest number of messages on a shared link that are played one by one."""


@dataclass(frozen=True)
class CrowdServer:
    """Server of a crowd.

    Attributes:
        packing_s: seconds that the server spends on receiving, or on sending, a message.
        applying_s: seconds of an update.
        in_s: seconds of a message on the link into the server, which all workers share.
        out_s: seconds of a message on the link out of the server.
    """

    packing_s: float
    applying_s: float = 0.0
    in_s: float = 0.0
    out_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("packing_s", "applying_s", "in_s", "out_s"):
            require_quantity(name, getattr(self, name), "give 0 for none")


def simulate_server_rounds(
    crowd: Crowd, server: CrowdServer, steps: int, rng: np.random.Generator
) -> CrowdResult:
    """Simulate a training with `parameter_server`.

    Args:
        crowd: the workers.
        server: the server.
        steps: number of steps.
        rng: source of the durations of steps.

    Raises:
        InputError: there is no step.

    Examples:
        >>> import numpy as np
        >>> from laggard.core.simulation.crowd.workers import Crowd, CrowdClass, require_steps
        >>> crowd = Crowd((CrowdClass("edge", workers=1000, step_s=1.0),))
        >>> rng = np.random.default_rng(1)
        >>> round(simulate_server_rounds(crowd, CrowdServer(0.001), 1, rng).makespan_s, 6)
        2.0
    """
    require_steps(steps)
    rounds = _ServerRounds(crowd, server, rng)
    for _ in range(steps):
        rounds.take()
    # The training ends when the server has the last gradient.
    shares = rounds.steps.computed_s / [each.workers for each in crowd.classes] / rounds.updated_s
    return CrowdResult(rounds.updated_s, rounds.pushed, shares)


class _ServerRounds:
    """Rounds of a server, of which each ends when all workers that are present have pushed.

    Args:
        crowd: the workers.
        server: the server.
        rng: source of the durations of steps.

    Attributes:
        steps: steps of the workers.
        updated_s: time at which the server had the last gradient of the last round.
        pushed: number of gradients of all rounds.
    """

    def __init__(self, crowd: Crowd, server: CrowdServer, rng: np.random.Generator) -> None:
        self.steps, self.updated_s, self.pushed = CrowdSteps(crowd, rng), 0.0, 0
        self._crowd, self._server = crowd, server
        sources = [each.absences for each in crowd.classes]
        self._attendance = Attendance(sources, crowd.slices(), rng)
        self._ready_s = np.zeros(crowd.workers)
        self._expected = np.ones(crowd.workers, dtype=np.bool_)

    def take(self) -> None:
        """Take a round."""
        if self._attendance.is_full:
            pushed, arrivals_s = self._expected, self._arrive(self._ready_s)
            complete_s = 0.0
        else:
            pushed, arrivals_s, complete_s = self._attend()
        server, here_s = self._server, np.sort(arrivals_s[pushed])
        served_s = queue(share(here_s, server.in_s), server.packing_s)
        self.updated_s = max(float(served_s[-1]), complete_s)
        self.pushed += len(here_s)
        numbers: FloatArray = np.arange(1.0, len(here_s) + 1) * server.packing_s
        sent_s = self._ready_s if pushed.all() else np.full(len(pushed), self.updated_s)
        sent_s[pushed] = share(self.updated_s + server.applying_s + numbers, server.out_s)
        self._ready_s = self._crowd.map_classes(CrowdClass.receive_s, sent_s)
        self._expected = pushed

    def _arrive(self, begins_s: FloatArray) -> FloatArray:
        """Return when gradients come to the server, if workers begin at these times."""
        return self._crowd.map_classes(CrowdClass.send_s, self.steps.finish_s(begins_s))

    def _attend(self) -> tuple[BoolArray, FloatArray, float]:
        """Return whose gradients count in a round, when they come, and when no more are awaited.

        A worker that leaves loses what it computes. One that joins before the others are done is
        waited for.
        """
        attendance = self._attendance
        present_s, begins_s = self._begin(self._ready_s)
        # A worker that was answered and has left since then is not waited for.
        expected = self._expected & (present_s == self._ready_s)
        if not expected.any():
            expected = self._find_first(present_s)
        arrivals_s = self._arrive(begins_s)
        for _ in range(MAX_ATTEMPTS):
            lost = arrivals_s > attendance.leaves_s
            complete_s = float(np.minimum(arrivals_s, attendance.leaves_s)[expected].max())
            joining = ~expected & (present_s < complete_s)
            again = expected & lost & (attendance.joins_s < complete_s)
            nobody = not joining.any() and not again.any()
            if nobody and not lost[expected].all():
                return expected & ~lost, arrivals_s, complete_s
            again = expected if nobody else again
            if again.any():
                ready_s = np.where(again, attendance.leaves_s, present_s)
                present_s, begins_s = self._begin(ready_s, again)
                redone_s = self._arrive(np.where(again, begins_s, np.inf))
                arrivals_s = np.where(again, redone_s, arrivals_s)
            # If nobody is left, those that join later need not be waited for.
            expected = self._find_first(present_s) if nobody else expected | joining
        raise InputError(
            f"workers leave and join so often that no step is complete after {self.updated_s:.4g} s"
            " — give longer lives"
        )

    def _find_first(self, present_s: FloatArray) -> BoolArray:
        """Return the workers that are present first."""
        first_s = present_s.min()
        if not np.isfinite(first_s):
            raise InputError(
                f"all workers have left after {self.updated_s:.4g} s, and none joins again — give"
                " `back_after`, or longer lives"
            )
        return np.asarray(present_s == first_s)

    def _begin(
        self, ready_s: FloatArray, who: BoolArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return when workers are present, and when they begin, which needs the model.

        Args:
            ready_s: times from which on they may begin, [workers].
            who: workers that try to begin, [workers]; None for all. Others keep their times.
        """
        present_s = self._attendance.follow(ready_s, who)
        with_model_s = self._crowd.map_classes(
            CrowdClass.receive_s, present_s + self._server.packing_s + self._server.out_s
        )
        return present_s, np.where(present_s > ready_s, with_model_s, present_s)


def queue(arrivals_s: FloatArray, service_s: float) -> FloatArray:
    """Return when each request leaves a queue that serves them one after another, [N].

    Args:
        arrivals_s: times of arrival, ascending, [N].
        service_s: seconds of each service.

    Examples:
        >>> import numpy as np
        >>> queue(np.array([0.0, 0.5, 9.0]), 1.0)
        array([ 1.,  2., 10.])
    """
    if not service_s:
        return arrivals_s
    # The k-th request leaves k services after the latest time at which the queue began to be busy.
    numbers = np.arange(len(arrivals_s)) * service_s
    return np.asarray(np.maximum.accumulate(arrivals_s - numbers) + numbers + service_s)


def share(arrivals_s: FloatArray, message_s: float) -> FloatArray:
    """Return when messages of one size have passed a link that they share evenly, [N].

    Messages that arrive one after another are joined into at most `MAX_MESSAGES` larger ones.

    Args:
        arrivals_s: times at which the messages begin, ascending, [N].
        message_s: seconds of a message that has the link for itself.

    Examples:
        >>> import numpy as np
        >>> share(np.array([0.0, 0.0, 9.0]), 1.0)
        array([ 2.,  2., 10.])
    """
    if not message_s:
        return arrivals_s
    joined = -(-len(arrivals_s) // MAX_MESSAGES)
    begins = arrivals_s[::joined].tolist()
    ends = np.repeat(_share(begins, joined * message_s), joined)[: len(arrivals_s)]
    return np.maximum(ends, arrivals_s + message_s)


def _share(begins_s: list[float], message_s: float) -> FloatArray:
    """Return when messages end that have equal parts of the link at any time.

    Each of n messages advances by dt / n in a time dt, so all have advanced equally since the last
    of them began, and they end in the order in which they began.
    """
    ends_s: list[float] = []
    now_s = advanced_s = 0.0
    due: deque[float] = deque()

    def end_until(until_s: float) -> None:
        nonlocal now_s, advanced_s
        while due:
            end_s = now_s + (due[0] - advanced_s) * len(due)
            if end_s > until_s:
                break
            now_s, advanced_s = end_s, due.popleft()
            ends_s.append(end_s)

    for begin_s in begins_s:
        end_until(begin_s)
        if due:
            advanced_s += (begin_s - now_s) / len(due)
        now_s = begin_s
        due.append(advanced_s + message_s)
    end_until(float("inf"))
    return np.array(ends_s)
