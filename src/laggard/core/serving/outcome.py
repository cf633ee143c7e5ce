"""Figures of answered requests: latencies, violated deadlines, slowdown and throughput."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class AnsweredRequest:
    """Request at its end.

    Attributes:
        arrived_s: time at which it arrived.
        answered_s: time of its answer; None if it was shed.
        alone_s: seconds that it would have taken alone.
        deadline_s: seconds within which it should be answered; infinite without a deadline.
    """

    arrived_s: float
    answered_s: float | None
    alone_s: float
    deadline_s: float = math.inf

    @property
    def latency_s(self) -> float | None:
        """Return the seconds until its answer; None if it was shed."""
        return None if self.answered_s is None else self.answered_s - self.arrived_s

    @property
    def is_late(self) -> bool:
        """Return whether it violated its deadline; a request that was shed did, if it has one."""
        latency_s = math.inf if self.latency_s is None else self.latency_s
        return latency_s > self.deadline_s


@dataclass(frozen=True)
class ServingOutcome:
    """Figures of some requests.

    Attributes:
        requests: number of requests.
        shed: number of those that were refused, because too many waited.
        percentiles_s: latency by percentile; empty if none was answered.
        mean_s: mean latency; None if none was answered.
        violations: part of the requests with a deadline that violated it; None without a deadline.
        antt: average normalized turnaround time, latency by seconds alone (S. Eyerman, L. Eeckhout,
            "System-level performance metrics for multiprogram workloads", IEEE Micro 28, 2008).
        throughput: answers per second, from the first arrival to the last answer.
    """

    requests: int
    shed: int
    percentiles_s: dict[int, float]
    mean_s: float | None
    violations: float | None
    antt: float | None
    throughput: float


def summarize_requests(requests: Sequence[AnsweredRequest]) -> ServingOutcome:
    """Return the figures of some requests, at least one."""
    latencies = [each.latency_s for each in requests if each.latency_s is not None]
    slowdowns = [
        each.latency_s / each.alone_s
        for each in requests
        if each.latency_s is not None and each.alone_s > 0
    ]
    bound = [each for each in requests if each.deadline_s < math.inf]
    ends_s = [each.answered_s for each in requests if each.answered_s is not None]
    lasted_s = max(ends_s, default=0.0) - min(each.arrived_s for each in requests)
    return ServingOutcome(
        requests=len(requests),
        shed=len(requests) - len(latencies),
        percentiles_s={
            each: float(np.percentile(latencies, each)) for each in PERCENTILES if latencies
        },
        mean_s=float(np.mean(latencies)) if latencies else None,
        violations=sum(each.is_late for each in bound) / len(bound) if bound else None,
        antt=float(np.mean(slowdowns)) if slowdowns else None,
        throughput=len(latencies) / lasted_s if lasted_s > 0 else 0.0,
    )
