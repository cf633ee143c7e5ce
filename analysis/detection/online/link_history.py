"""Latest link samples in bounded memory: the evidence for naming a slow link during a run."""

from __future__ import annotations

from collections import deque
from dataclasses import fields

import numpy as np

from laggard.analysis.detection.links import (
    SampleWindow,
    SlowLinks,
    find_changed_link,
    find_slow_links,
    has_changed_link,
)
from laggard.analysis.tables.columns import BoolArray, IntArray, LinkColumns
from laggard.analysis.tables.load_run import RankHost, create_empty_links

# Bounds of the memory: samples, ends of steps, and slow intervals of the transfers.
MOST_ROWS = 20_000
_MOST_STEPS = 8192
_MOST_SLOW = 20


class LinkHistory:
    """Store of the latest link samples, step ends and slow intervals.

    Args:
        hosts: host of every rank.
    """

    def __init__(self, hosts: tuple[RankHost, ...]) -> None:
        self._hosts = hosts
        self._parts: list[LinkColumns] = []
        self._slow: deque[tuple[int, int]] = deque(maxlen=_MOST_SLOW)
        self._ends_ns: deque[int] = deque(maxlen=_MOST_STEPS)

    def record_step(self, end_ns: int) -> None:
        """Record the end of a step that all ranks have finished."""
        self._ends_ns.append(end_ns)

    def update(self, samples: LinkColumns) -> None:
        """Add samples that are later than all earlier ones."""
        if len(samples):
            self._parts.append(samples)
        while len(self._parts) > 1 and sum(map(len, self._parts[1:])) >= MOST_ROWS:
            del self._parts[0]

    def find_end_ns(self, steps: int) -> int:
        """Return the end of the step before the last `steps` ones, or of the first known step."""
        return self._ends_ns[-steps - 1] if steps < len(self._ends_ns) else self._ends_ns[0]

    def record_slow_transfers(self, first_ns: int, last_ns: int) -> None:
        """Exclude the time from `first_ns` to `last_ns` from the links' usual behavior."""
        self._slow.append((first_ns, last_ns))

    def find_changed_link(self, first_ns: int, excess_s: float) -> tuple[str, str] | None:
        """Return the link that has delayed the transfers since `first_ns`, if counters show one.

        Args:
            first_ns: start of the first slow step.
            excess_s: seconds by which a step's transfers take longer than usual.
        """
        links = self._merge_parts()
        return find_changed_link(links, *self._windows(links, first_ns), excess_s, self._hosts)

    def has_changed_link(self, first_ns: int, excess_s: float) -> bool:
        """Return whether any link changed enough to explain the excess.

        The arguments are those of `find_changed_link`.
        """
        links = self._merge_parts()
        return has_changed_link(links, *self._windows(links, first_ns), excess_s, self._hosts)

    def find_persistently_slow(self) -> tuple[SlowLinks, int]:
        """Return the links that are slower than the fastest class, and the number of steps used.

        Times of slow transfers are excluded.
        """
        links = self._merge_parts()
        quiet = self._is_quiet(links.time_ns) & self._is_covered(links.time_ns)
        return find_slow_links(
            links, quiet, {host.host: host.tier for host in self._hosts}
        ), self._steps(links, 0)[1]

    def _windows(self, links: LinkColumns, first_ns: int) -> tuple[SampleWindow, SampleWindow]:
        inside = links.time_ns >= first_ns
        before = self._is_quiet(links.time_ns) & self._is_covered(links.time_ns) & ~inside
        within, earlier = self._steps(links, first_ns)
        return SampleWindow(inside, within), SampleWindow(before, earlier)

    def _steps(self, links: LinkColumns, first_ns: int) -> tuple[int, int]:
        """Return the number of steps since `first_ns` and of normal steps before it, at least 1.

        Only steps for which there are samples count. If `first_ns` is 0, all normal steps count as
        before it.
        """
        ends = np.array(self._ends_ns, dtype=np.int64)
        if len(links):
            ends = ends[ends >= links.time_ns[0]]
        quiet = ends[self._is_quiet(ends)]
        earlier = quiet[quiet < first_ns] if first_ns else quiet
        return max(int((ends >= first_ns).sum()), 1), max(len(earlier), 1)

    def _is_quiet(self, time_ns: IntArray) -> BoolArray:
        rows = np.ones(len(time_ns), dtype=np.bool_)
        for first_ns, last_ns in self._slow:
            rows &= (time_ns < first_ns) | (time_ns > last_ns)
        return rows

    def _is_covered(self, time_ns: IntArray) -> BoolArray:
        """Return a mask of the times that are not older than the recorded steps.

        Older samples would count busy time without the steps that it belongs to.
        """
        covered: BoolArray = time_ns >= (
            self._ends_ns[0] if len(self._ends_ns) == _MOST_STEPS else 0
        )
        return covered

    def _merge_parts(self) -> LinkColumns:
        if not self._parts:
            return create_empty_links()
        if len(self._parts) > 1:
            columns = {
                f.name: np.concatenate([getattr(part, f.name) for part in self._parts])
                for f in fields(LinkColumns)
            }
            self._parts = [LinkColumns(**columns)]
        return self._parts[0]
