"""Ranks that go on in small groups, replayed: whoever is ready joins the line, and the first so
many in line go on together.

partial_reduce (Luo et al., ASPLOS 2020; Miao et al., SIGMOD 2021). Who is whose companion is worked
out anew in every replay, since it hangs on who comes when. That groups must now and then join ranks
whose models have long not mixed is left out: it binds one group in many.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.columns import FloatArray
from laggard.analysis.own_pace.needs import find_needs
from laggard.analysis.own_pace.paces import Pace
from laggard.analysis.own_pace.replay import Durations, Race


@dataclass(frozen=True)
class GroupRace(Race):
    """A run whose ranks go on in groups.

    Attributes:
        size: ranks of a group.
        lag_s: how long after the last of a group was ready those who had waited for it usually went
            on; it does so itself when it has been told, which is behind its wait.
    """

    size: int = 2
    lag_s: float = 0.0

    def ends(self, durations: Durations) -> tuple[FloatArray, ...]:
        """When every step of every rank ends, [W][C, N]."""
        count = max(len(each) for each in (*durations.before, *durations.after))
        ends = tuple(np.empty((count, len(pace))) for pace in self.paces)
        for replay in range(count):
            before = [each[min(replay, len(each) - 1)].tolist() for each in durations.before]
            after = [each[min(replay, len(each) - 1)].tolist() for each in durations.after]
            for rank, end in enumerate(self._walk(before, after)):
                ends[rank][replay] = end
        return ends

    def _walk(
        self, before: Sequence[Sequence[float]], after: Sequence[Sequence[float]]
    ) -> list[list[float]]:
        """One replay; once fewer have steps left than a group takes, these go on alone."""
        ends: list[list[float]] = [[] for _ in self.paces]
        coming = [
            (float(pace.start_s[0]) + before[rank][0], rank) for rank, pace in enumerate(self.paces)
        ]
        heapq.heapify(coming)
        line: list[int] = []
        while coming or line:
            if coming:
                now_s, rank = heapq.heappop(coming)
                line.append(rank)
            if len(line) < min(self.size, len(line) + len(coming)):
                continue
            for member in line:
                step = len(ends[member])
                end_s = now_s + (0.0 if member == rank else self.lag_s) + after[member][step]
                ends[member].append(end_s)
                if step + 1 < len(self.paces[member]):
                    heapq.heappush(coming, (end_s + before[member][step + 1], member))
            line = []
        return ends


def group_race(paces: tuple[Pace, ...], end_s: float, size: int) -> GroupRace:
    """A run whose ranks went on in groups of `size`.

    The time for which a rank stood without another to wait for (while a group was agreed on) is
    part of what comes behind the wait.
    """
    lags = [
        need.lag_s
        for pace, of_rank in zip(paces, find_needs(paces, None), strict=True)
        for step, needs in enumerate(of_rank)
        for need in needs.of
        if pace.wait_s[step] > 0
    ]
    lag_s = float(np.median(lags)) if lags else 0.0
    return GroupRace(paces, ((),) * len(paces), end_s, size=size, lag_s=lag_s)
