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
from laggard.core.simulation.crowd.workers import Crowd, CrowdResult, CrowdSteps, require_steps

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
    packing_s, up_s, down_s = (
        crowd.spread_out([getattr(each, name) for each in crowd.classes])
        for name in ("packing_s", "up_s", "down_s")
    )
    there_s, back_s = packing_s + up_s, packing_s + down_s
    taken = CrowdSteps(crowd, rng)
    begins_s = np.zeros(crowd.workers)
    answers_s: FloatArray = np.arange(1.0, crowd.workers + 1) * server.packing_s
    for _ in range(steps):
        arrivals_s = np.sort(taken.finish_s(begins_s) + there_s)
        updated_s = float(queue(share(arrivals_s, server.in_s), server.packing_s)[-1])
        begins_s = share(updated_s + server.applying_s + answers_s, server.out_s) + back_s
    # The training ends when the server has the last gradient.
    shares = taken.computed_s / [each.workers for each in crowd.classes] / updated_s
    return CrowdResult(updated_s, steps * crowd.workers, shares)


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
