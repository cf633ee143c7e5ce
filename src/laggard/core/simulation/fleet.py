"""Very many workers in lockstep: classes of equal workers at sites whose workers share a link.

The workers of a site send their updates over the link that they share, to the site's aggregator.
The aggregators send the sums over the link that all of them share, to the root. The mean takes the
same ways back. Only the clocks of a few sites are kept, so a million workers need megabytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from laggard.core.cost_model.arrays import FloatArray, IntArray
from laggard.core.cost_model.demand import require_quantity
from laggard.core.cost_model.shared_link import compute_last_delivery_s
from laggard.core.errors import InputError
from laggard.core.rules.synchronization import PeriodicSynchronization

Distribution = Literal["lognormal", "shifted_exponential"]
Precision = type[np.float32] | type[np.float64]
_CLOCKS_AT_ONCE = 1 << 16


def _require_rate(name: str, mbps: float) -> None:
    """Raise an error unless a rate is above 0; it may be infinite."""
    if not mbps > 0:
        raise InputError(
            f"{name} is {mbps} and must be greater than 0 — leave it out for a link without a limit"
        )


@dataclass(frozen=True)
class WorkerClass:
    """Equal workers at equal sites.

    Attributes:
        sites: number of sites.
        workers: number of workers of a site.
        step_s: usual seconds of a step: the median of `lognormal`, or the least of
            `shifted_exponential` (Lee et al., IEEE Trans. Inf. Theory 64, 2018).
        spread: standard deviation of the logarithm of a step's duration, or mean excess over the
            least duration as a part of it.
        distribution: distribution of the durations of steps.
        link_mbps: rate that the workers of a site share, in each direction.
        rtt_ms: round trip between a worker and its aggregator.

    Raises:
        InputError: a number is impossible.

    Examples:
        >>> phones = WorkerClass(sites=9_000, workers=100, step_s=0.5, spread=0.3)
        >>> phones.sites * phones.workers
        900000
    """

    sites: int
    workers: int
    step_s: float
    spread: float = 0.0
    distribution: Distribution = "lognormal"
    link_mbps: float = float("inf")
    rtt_ms: float = 0.0

    def __post_init__(self) -> None:
        for name, count in (("sites", self.sites), ("workers", self.workers)):
            if count < 1:
                raise InputError(f"{name} is {count} and must be at least 1")
        _require_rate("link_mbps", self.link_mbps)
        require_quantity("step_s", self.step_s, "give the seconds of a usual step", positive=True)
        require_quantity("spread", self.spread, "give 0 for steps that are all alike")
        require_quantity("rtt_ms", self.rtt_ms, "give the round trip in ms")

    def draw(self, rng: np.random.Generator, out: npt.NDArray[np.floating]) -> None:
        """Draw the durations of one step of all workers, in seconds."""
        if self.distribution == "lognormal":
            rng.standard_normal(out=out, dtype=out.dtype)
            np.multiply(out, self.spread, out=out)
            np.exp(out, out=out)
        else:
            rng.standard_exponential(out=out, dtype=out.dtype)
            np.multiply(out, self.spread, out=out)
            np.add(out, 1.0, out=out)
        np.multiply(out, self.step_s, out=out)


@dataclass(frozen=True)
class Fleet:
    """Classes of workers, and the root that all aggregators exchange with.

    Attributes:
        classes: classes of workers.
        message_bytes: size of an update, of a sum and of the model.
        root_mbps: rate that all aggregators share, in each direction.
        root_rtt_ms: round trip between an aggregator and the root.

    Raises:
        InputError: there is no class, or a number is impossible.

    Examples:
        >>> from laggard.core.simulation.fleet import WorkerClass
        >>> fleet = Fleet((WorkerClass(10, 100, 0.5),), message_bytes=1e6)
        >>> fleet.message_s(rate_mbps=80.0)
        0.1
    """

    classes: tuple[WorkerClass, ...]
    message_bytes: float = 0.0
    root_mbps: float = float("inf")
    root_rtt_ms: float = 0.0

    def __post_init__(self) -> None:
        if not self.classes:
            raise InputError("the fleet has no worker — give at least one class")
        _require_rate("root_mbps", self.root_mbps)
        require_quantity("message_bytes", self.message_bytes, "give the bytes of an update")
        require_quantity("root_rtt_ms", self.root_rtt_ms, "give the round trip in ms")

    def message_s(self, rate_mbps: float) -> float:
        """Return the seconds of a message that has a link for itself."""
        return self.message_bytes * 8e-6 / rate_mbps


@dataclass(frozen=True)
class FleetResult:
    """Result of a simulation.

    Attributes:
        makespan_s: seconds until all workers have the last mean.
        sync_s: time of every synchronization at the root, [N].
        waited_s: mean seconds that a worker of each class did not compute, [classes].
        times_last: synchronizations in which a site of each class was the last, [classes].
    """

    makespan_s: float
    sync_s: FloatArray
    waited_s: FloatArray
    times_last: IntArray


def simulate_fleet(
    fleet: Fleet,
    steps: int,
    rng: np.random.Generator,
    synchronization: PeriodicSynchronization | None = None,
    precision: Precision = np.float32,
) -> FleetResult:
    """Simulate a training of a fleet.

    Args:
        fleet: workers and links.
        steps: number of steps; the last one synchronizes.
        rng: source of the durations of steps.
        synchronization: steps that synchronize; every step when absent.
        precision: type of the workers' clocks, which count from the begin of their steps.

    Raises:
        InputError: there is no step.

    Examples:
        >>> import numpy as np
        >>> from laggard.core.simulation.fleet import Fleet, WorkerClass
        >>> slow, fast = WorkerClass(1, 4, step_s=2.0), WorkerClass(2, 3, step_s=1.0)
        >>> result = simulate_fleet(Fleet((slow, fast)), 10, np.random.default_rng(1))
        >>> result.makespan_s
        20.0
        >>> result.waited_s.tolist()
        [0.0, 10.0]
    """
    if steps < 1:
        raise InputError(f"steps is {steps} and must be at least 1")
    rule = synchronization or PeriodicSynchronization(1)
    begins_s = np.zeros(len(fleet.classes))
    worked_s, times_last = np.zeros(len(begins_s)), np.zeros(len(begins_s), dtype=np.int64)
    now_s, step, sync_s = 0.0, 0, []
    while step < steps:
        synced = min(rule.next(step), steps - 1)
        rounds = [
            _compute_round(fleet, each, synced + 1 - step, rng, precision) for each in fleet.classes
        ]
        worked_s += [each.worked_s for each in rounds]
        arrival_s = [
            each.delivered_s + begin_s for each, begin_s in zip(rounds, begins_s, strict=True)
        ]
        now_s += float(
            compute_last_delivery_s(np.concatenate(arrival_s), fleet.message_s(fleet.root_mbps))
        )
        times_last[int(np.argmax([each.max() for each in arrival_s]))] += 1
        sync_s.append(now_s)
        step, begins_s = synced + 1, _broadcast(fleet)
    makespan_s = now_s + float(begins_s.max())
    return FleetResult(makespan_s, np.array(sync_s), makespan_s - worked_s, times_last)


@dataclass(frozen=True)
class _ClassRound:
    """Steps of one class between two synchronizations.

    Attributes:
        delivered_s: seconds from the begin of the steps until each site's sum is at the root,
            without the time in which the root's link is shared, [sites].
        worked_s: mean seconds that a worker computed.
    """

    delivered_s: FloatArray
    worked_s: float


def _compute_round(
    fleet: Fleet, workers: WorkerClass, steps: int, rng: np.random.Generator, precision: Precision
) -> _ClassRound:
    delivered_s, worked_s = np.empty(workers.sites), 0.0
    # Few sites at a time, whose clocks fit into the processor's cache.
    at_once = max(1, _CLOCKS_AT_ONCE // workers.workers)
    clocks = np.empty((min(at_once, workers.sites), workers.workers), precision)
    drawn = np.empty_like(clocks)
    for begin in range(0, workers.sites, at_once):
        count = min(at_once, workers.sites - begin)
        clock = clocks[:count]
        workers.draw(rng, clock)
        for _ in range(steps - 1):
            workers.draw(rng, drawn[:count])
            clock += drawn[:count]
        worked_s += float(clock.mean()) * count / workers.sites
        delivered_s[begin : begin + count] = compute_last_delivery_s(
            clock, fleet.message_s(workers.link_mbps)
        )
    return _ClassRound(delivered_s + (workers.rtt_ms + fleet.root_rtt_ms) / 2e3, worked_s)


def _broadcast(fleet: Fleet) -> FloatArray:
    """Return the seconds from a mean at the root until the workers of each class have it."""
    sites = sum(each.sites for each in fleet.classes)
    to_sites_s = sites * fleet.message_s(fleet.root_mbps) + fleet.root_rtt_ms / 2e3
    return np.array(
        [
            to_sites_s + each.workers * fleet.message_s(each.link_mbps) + each.rtt_ms / 2e3
            for each in fleet.classes
        ]
    )
