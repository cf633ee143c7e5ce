"""The latest samples of the links, in bounded memory: the evidence for which link is slow now."""

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

MOST_ROWS = 20_000
_MOST_STEPS = 8192
_MOST_SLOW = 20


class LinkHistory:
    """Keeps the latest samples.

    Args:
        hosts: the ranks' hosts.
    """

    def __init__(self, hosts: tuple[RankHost, ...]) -> None:
        self._hosts = hosts
        self._parts: list[LinkColumns] = []
        self._slow: deque[tuple[int, int]] = deque(maxlen=_MOST_SLOW)
        self._ends_ns: deque[int] = deque(maxlen=_MOST_STEPS)

    def record_step(self, end_ns: int) -> None:
        """One more step of all ended."""
        self._ends_ns.append(end_ns)

    def update(self, samples: LinkColumns) -> None:
        """More samples, later than those before."""
        if len(samples):
            self._parts.append(samples)
        while len(self._parts) > 1 and sum(map(len, self._parts[1:])) >= MOST_ROWS:
            del self._parts[0]

    def find_end_ns(self, steps: int) -> int:
        """When the step ended that came before the last `steps`; of the first that is known, if
        they are more.
        """
        return self._ends_ns[-steps - 1] if steps < len(self._ends_ns) else self._ends_ns[0]

    def record_slow_transfers(self, first_ns: int, last_ns: int) -> None:
        """Transfers were slow from `first_ns` to `last_ns`: what links did then is not what they
        usually do.
        """
        self._slow.append((first_ns, last_ns))

    def find_changed_link(self, first_ns: int, excess_s: float) -> tuple[str, str] | None:
        """The link that holds the transfers up since `first_ns`, if the counters say so.

        Args:
            first_ns: when the first slow step began.
            excess_s: how much longer than usual a step's transfers take.
        """
        links = self._merge_parts()
        return find_changed_link(links, *self._windows(links, first_ns), excess_s, self._hosts)

    def has_changed_link(self, first_ns: int, excess_s: float) -> bool:
        """Whether some link changed enough to account for it (arguments as `find_changed_link`)."""
        links = self._merge_parts()
        return has_changed_link(links, *self._windows(links, first_ns), excess_s, self._hosts)

    def find_persistently_slow(self) -> tuple[SlowLinks, int]:
        """Links that are slower than the fastest class of links, outside the times when transfers
        were slow; and in how many steps.
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
        """Steps that ended after `first_ns`, and quiet ones before it (all of them if it is 0), of
        the time that there are samples of.
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
        """What is not older than the steps that are remembered."""
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
