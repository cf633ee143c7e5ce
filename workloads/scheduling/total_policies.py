"""Policies that optimize one number of the whole cluster: its makespan, throughput, or cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError
from laggard.workloads.scheduling.cluster_jobs import ClusterState
from laggard.workloads.scheduling.linear_program import maximize_least, maximize_sum


@dataclass(frozen=True)
class Makespan:
    """Minimize the time at which the last job that is present ends."""

    name: str = "makespan"
    aware: bool = True
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the allocation with the least time to the end of all jobs."""
        return minimize_makespan(state)[1]


def minimize_makespan(state: ClusterState) -> tuple[float, FloatArray]:
    """Return the seconds until all jobs can end, and an allocation with it, [J, M].

    No job gets more than it needs to end with the last one, so that none delays the others.
    The greatest z with which every job takes z times its remaining steps in a second ends all of
    them after 1 / z seconds, so no bisection is needed.
    """
    rate, allocation = maximize_least(
        state, state.throughput / state.steps_left[:, None], fill=False
    )
    return 1.0 / rate, allocation


@dataclass(frozen=True)
class SumThroughput:
    """Maximize the sum of the jobs' throughputs, whoever gets nothing."""

    name: str = "sum_throughput"
    aware: bool = True
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the allocation with the greatest sum."""
        return maximize_sum(state, state.throughput)


@dataclass(frozen=True)
class Cost:
    """Maximize the sum of throughputs, each divided by the price of its devices."""

    name: str = "cost"
    aware: bool = True
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the allocation with the greatest sum.

        Raises:
            InputError: a type has no price.
        """
        if not (state.prices > 0).all():
            raise InputError("the policy cost needs a price above 0 for every type — give them")
        return maximize_sum(state, state.throughput / np.asarray(state.prices))
