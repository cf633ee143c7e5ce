"""Policy of two levels: teams share the cluster by their weights, jobs share what their team has.

The program is Gavel's water filling (D. Narayanan et al., *Heterogeneity-aware cluster scheduling
policies for deep learning workloads*, OSDI 2020): all jobs grow at the rates of their weights until
some can grow no further, whose weights then go to the other jobs of their teams.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import BoolArray, FloatArray
from laggard.workloads.scheduling.cluster_jobs import ClusterState, TeamOrder
from laggard.workloads.scheduling.linear_program import maximize_growth, spread_growth


@dataclass(frozen=True)
class HierarchicalFairness:
    """Maximize the least throughput of the teams, relative to their weights, and then of jobs.

    Throughputs are relative to a part of every type, as in `max_min_fairness`. The jobs of a team
    share its weight by their priorities, or have it one after another.
    """

    name: str = "hierarchical"
    aware: bool = True
    in_turn: bool = False

    def allocate(self, state: ClusterState) -> FloatArray:
        """Return the allocation in which nobody can have more unless someone has less."""
        factor = state.scale / state.proportional_throughput
        value = state.throughput * factor[:, None]
        level, growing = np.zeros(len(state.jobs)), np.ones(len(state.jobs), dtype=bool)
        while True:
            weight = _split_weights(state, growing)
            level = level + weight * maximize_growth(state, value, level, weight)
            allocation, growth = spread_growth(state, value, level)
            able = growing & (growth > 0.5)
            if (able == growing).all():
                # Some job is full. Rounding hides it, and it is the one that grows least.
                able[np.argmin(np.where(weight > 0, growth, np.inf))] = False
            growing = able
            if not growing.any():
                return allocation


def _split_weights(state: ClusterState, growing: BoolArray) -> FloatArray:
    """Return the part of its team's weight that each job has; none of it is left to full jobs."""
    weights = np.zeros(len(state.jobs))
    teams = {job.team.name: job.team for job in state.jobs}
    for name, team in teams.items():
        of_team = np.array([job.team.name == name for job in state.jobs])
        able = np.flatnonzero(of_team & growing)
        if team.order is TeamOrder.FIFO:
            weights[able[:1]] = team.weight
        elif len(able):
            priority = state.priority[able]
            weights[able] = team.weight * priority / priority.sum()
    return weights
