"""Replay of partial_reduce: ready ranks queue, and the strategy's rule forms groups of them.

The strategy is that of Luo et al., ASPLOS 2020, and Miao et al., SIGMOD 2021. The members of a
group depend on the order of arrival, so groups are formed anew in every replay.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.replay.asynchronous.async_replay import AsyncReplay
from laggard.analysis.replay.asynchronous.step_dependencies import find_dependencies
from laggard.analysis.tables.columns import FloatArray
from laggard.analysis.tables.timelines.rank_timeline import RankTimeline
from laggard.core.rules.partial_reduce import create_group_rule
from laggard.core.simulation.step_graph import StepDurations


@dataclass(frozen=True)
class GroupReplay(AsyncReplay):
    """Replay of a run whose ranks continue in groups.

    Attributes:
        size: number of ranks in a group.
        rounds: steps after which groups join ranks whose models have not mixed.
        lag_s: usual seconds from the readiness of a group's last rank until the others resume. The
            last rank itself resumes when it is notified, which is recorded after its wait.
    """

    size: int = 2
    rounds: int = 16
    lag_s: float = 0.0

    def end_times(self, durations: StepDurations) -> tuple[FloatArray, ...]:
        """Return the end of every step of every rank, [W][C, N]."""
        count = durations.count
        end_times = tuple(
            np.empty((count, len(rank_timeline))) for rank_timeline in self.rank_timelines
        )
        # Groups differ between replays, so replays cannot be computed side by side as arrays.
        for replay in range(count):
            before = [each[min(replay, len(each) - 1)].tolist() for each in durations.before]
            after = [each[min(replay, len(each) - 1)].tolist() for each in durations.after]
            for rank, end in enumerate(self._walk(before, after)):
                end_times[rank][replay] = end
        return end_times

    def _walk(
        self, before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
    ) -> list[list[float]]:
        """Run one replay and return the end of every step, per rank.

        A rank without further steps leaves, so that the last ranks do not wait for it.
        """
        end_times: list[list[float]] = [[] for _ in self.rank_timelines]
        coming = [
            (float(rank_timeline.start_s[0]) + before[rank][0], rank)
            for rank, rank_timeline in enumerate(self.rank_timelines)
        ]
        heapq.heapify(coming)
        rule = create_group_rule(range(len(before)), self.size, self.rounds)
        while coming:
            now_s, rank = heapq.heappop(coming)
            groups = deque(rule.ready(rank))
            while groups:
                group = groups.popleft()
                for member in group.members:
                    step = len(end_times[member])
                    end_s = now_s + (0.0 if member == rank else self.lag_s) + after[member][step]
                    end_times[member].append(end_s)
                    if step + 1 < len(before[member]):
                        heapq.heappush(coming, (end_s + before[member][step + 1], member))
                    else:
                        groups.extend(rule.remove_member(member))
        return end_times


def build_group_replay(
    rank_timelines: tuple[RankTimeline, ...], end_s: float, size: int, rounds: int
) -> GroupReplay:
    """Return the replay of a run whose ranks continued in groups (see `GroupReplay`).

    While a group is agreed on, a rank is idle without a known rank to wait for. This time counts
    as work after the wait.
    """
    lags = [
        dependency.lag_s
        for rank_timeline, of_rank in zip(
            rank_timelines, find_dependencies(rank_timelines, None), strict=True
        )
        for step, dependencies in enumerate(of_rank)
        for dependency in dependencies.required
        if rank_timeline.wait_s[step] > 0
    ]
    lag_s = float(np.median(lags)) if lags else 0.0
    return GroupReplay(
        rank_timelines, ((),) * len(rank_timelines), end_s, size=size, rounds=rounds, lag_s=lag_s
    )
