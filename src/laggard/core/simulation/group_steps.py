"""Steps of ranks that go on in groups, for several what-ifs.

The rule is that of partial_reduce (Luo et al., ASPLOS 2020; Miao et al., SIGMOD 2021). The members
of a group depend on the order of arrival, so groups are formed anew in every what-if.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.rules.partial_reduce import create_group_rule
from laggard.core.simulation.step_graph import StepDurations


@dataclass(frozen=True)
class GroupSteps:
    """Steps of ranks that go on in groups.

    Attributes:
        starts_s: time at which the first step of each rank begins, [W].
        size: number of ranks in a group.
        rounds: steps after which groups join ranks whose models have not mixed.
        lag_s: seconds from the readiness of a group's last rank until the others resume.
    """

    starts_s: tuple[float, ...]
    size: int
    rounds: int = 16
    lag_s: float = 0.0

    def end_times(self, durations: StepDurations) -> tuple[FloatArray, ...]:
        """Return the end of every step of every rank, [W][C, N]."""
        # Groups differ between what-ifs, so these cannot be computed side by side as arrays.
        walks = [
            self._walk(
                [each[min(number, len(each) - 1)].tolist() for each in durations.before],
                [each[min(number, len(each) - 1)].tolist() for each in durations.after],
            )
            for number in range(durations.count)
        ]
        return tuple(np.array(of_rank) for of_rank in zip(*walks, strict=True))

    def _walk(
        self, before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
    ) -> list[list[float]]:
        """Return the end of every step in one what-if, per rank.

        A rank without further steps leaves, so that the last ranks do not wait for it.
        """
        end_times: list[list[float]] = [[] for _ in before]
        coming = [(start_s + before[rank][0], rank) for rank, start_s in enumerate(self.starts_s)]
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
