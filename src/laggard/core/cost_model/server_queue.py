"""Speed of workers that share one server, as a closed queue, and the fit of one to few speeds.

Every worker computes for a while (`think_s`), and then is served: the server takes its message,
updates the model and answers (`service_s`). A worker that finds others waits for them. The speed of
n workers follows by mean value analysis (M. Reiser, S. S. Lavenberg, J. ACM 27, 1980), one worker
after another. Services of equal length leave half of one to a worker that arrives during it, not
all of it as exponential ones do.

The speeds of one to three workers hardly show a server that only more of them would fill. What is
known of the server besides is therefore a second source: `ServiceCost` has the seconds of a service
by the number and size of a model's tensors, fitted to models whose greatest speed was measured.
Both sources count by their errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError

SPEED_ERROR = 0.04
"""Relative difference between two measurements of one speed that is nothing unusual."""

SERVICE_ERROR = 0.25
"""Relative error of a service that `ServiceCost` expects for another model."""

_CYCLES = np.linspace(0.9, 1.15, 51)
"""Candidates for the seconds of a worker alone, relative to the fastest measured worker."""
_SERVICES = np.geomspace(1e-3, 1.0, 400)
"""Candidates for a service, relative to the seconds of a worker alone."""


@dataclass(frozen=True)
class ServerQueue:
    """Workers that compute and are served in turns.

    Attributes:
        think_s: seconds in which a worker needs no server.
        service_s: seconds in which the server serves one worker.
    """

    think_s: float
    service_s: float

    @property
    def knee(self) -> float:
        """Return the number of workers that keep the server busy, if none waits."""
        if self.service_s <= 0:
            return math.inf
        return (self.think_s + self.service_s) / self.service_s

    def speed(self, workers: int) -> float:
        """Return the steps per second of all workers together.

        Examples:
            >>> queue = ServerQueue(think_s=0.09, service_s=0.01)
            >>> [round(queue.speed(workers)) for workers in (1, 5, 10, 20)]
            [10, 49, 84, 100]
        """
        return float(_compute_speeds(np.array(self.think_s), np.array(self.service_s), workers))


@dataclass(frozen=True)
class ServiceCost:
    """Seconds of a server for one step of one worker.

    Attributes:
        tensor_s: seconds for each tensor of the model.
        byte_s: seconds for each byte of it.
    """

    tensor_s: float
    byte_s: float

    @classmethod
    def fit(cls, services: Sequence[tuple[int, float, float]]) -> Self:
        """Fit the cost to models whose service is known.

        Args:
            services: tensors, bytes, and seconds of a service of each model, all above 0.

        Raises:
            InputError: fewer than two models, or a value that is not positive.
        """
        if len(services) < 2 or any(not 0 < each < math.inf for row in services for each in row):
            raise InputError(
                f"the services of {len(services)} models are too few — give tensors, bytes and"
                " seconds above 0 of at least two models"
            )
        from scipy.optimize import nnls

        sizes = np.array([row[:2] for row in services], dtype=float)
        seconds = np.array([row[2] for row in services])
        # Relative errors count, and no part of the cost is negative.
        scale = sizes.max(axis=0)
        found, _ = nnls(sizes / scale / seconds[:, None], np.ones(len(seconds)))
        tensor_s, byte_s = (float(each) for each in found / scale)
        return cls(tensor_s, byte_s)

    def service_s(self, tensors: int, size_bytes: float) -> float:
        """Return the seconds of a service of a model."""
        return self.tensor_s * tensors + self.byte_s * size_bytes


def fit_server_queue(
    speeds: Mapping[int, float], expected_service_s: float | None = None
) -> ServerQueue:
    """Fit a queue to the speeds of few workers.

    Args:
        speeds: steps per second of all workers together, by their number.
        expected_service_s: seconds of a service that a cost model expects; None if there is none.

    Returns:
        The most probable queue, if speeds and the expected service have errors of `SPEED_ERROR` and
        `SERVICE_ERROR`.

    Raises:
        InputError: no speed is given, a number is not positive, or the expected service is not.

    Examples:
        >>> fit_server_queue({1: 10.0, 2: 20.0, 3: 29.0}, expected_service_s=0.025).knee < 5
        True
    """
    if not speeds or min(speeds) < 1 or any(not 0 < each < math.inf for each in speeds.values()):
        raise InputError(
            f"speeds {dict(speeds)}: must be numbers above 0, by a number of workers of at least 1"
            " — give the steps per second of one or more numbers of workers"
        )
    if expected_service_s is not None and not 0 < expected_service_s < math.inf:
        raise InputError(
            f"expected_service_s {expected_service_s}: must be above 0 — leave it out if it is not"
            " known"
        )
    # Waiting only makes a worker slower, so the fastest is nearest to a worker alone.
    fastest_s = min(workers / each for workers, each in speeds.items())
    cycle_s, part = np.meshgrid(fastest_s * _CYCLES, _SERVICES, indexing="ij")
    service_s = cycle_s * part
    error: FloatArray = np.zeros_like(cycle_s)
    for workers, speed in speeds.items():
        expected = _compute_speeds(cycle_s - service_s, service_s, workers)
        error += (np.log(expected / speed) / SPEED_ERROR) ** 2
    if expected_service_s is not None:
        error += (np.log(service_s / expected_service_s) / SERVICE_ERROR) ** 2
    best = int(error.argmin())
    found_s = float(service_s.flat[best])
    return ServerQueue(float(cycle_s.flat[best]) - found_s, found_s)


def _compute_speeds(think_s: FloatArray, service_s: FloatArray, workers: int) -> FloatArray:
    """Return the speed of the given number of workers, elementwise."""
    waiting = busy = speed = np.zeros_like(service_s)
    for present in range(1, workers + 1):
        # An arriving worker waits for those in the queue, and half as long for the one in service.
        response_s = service_s * (1.0 + waiting - busy / 2.0)
        speed = np.minimum(present / (think_s + response_s), 1.0 / service_s)
        waiting, busy = speed * response_s, np.minimum(speed * service_s, 1.0)
    return speed
