"""Clocks of ranks, related by collectives that no rank leaves before all have arrived.

The ranks of such a collective leave it together. If the ends that a rank recorded differ from those
of another rank, its clock differs, too. A difference that grows steadily is a drift. Ranks that
share no collective are related through other ranks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from laggard.analysis.formats.import_run.main_lane import MIN_OVERLAP_NS
from laggard.analysis.tables.columns import FloatArray, IntArray

_MIN_OFFSET_NS = 1_000_000
_MIN_DRIFT_NS = 2_000
# Random jitter of 16 ends has a trend of more than 8 times its usual size in 0.1 % of all cases.
_DRIFT_PER_RESIDUAL = 8.0
_MIN_ENDS_OF_DRIFT = 16
_IMPOSSIBLE_SHARE = 0.05
# Largest error of a device's clock that a profiler leaves.
_CONTRADICTION_NS = 1_000_000
_MAX_SLOPE_POINTS = 200
_ERROR_PERCENTILE = 95.0


@dataclass(frozen=True, slots=True)
class CollectiveEnd:
    """End of a collective as one rank recorded it, in nanoseconds of its clock.

    Attributes:
        launch_ns: arrival of the rank.
        end_ns: time at which the rank continued.
        over_ns: time by which the collective was recorded as over; not before `end_ns`.
    """

    launch_ns: int
    end_ns: int
    over_ns: int


CollectiveEnds = Mapping[int, Mapping[Hashable, CollectiveEnd]]
"""Ends by rank and collective."""


@dataclass(frozen=True)
class ClockOffset:
    """Time that a rank's clock is ahead of the reference clock: a line over the rank's own time.

    Attributes:
        at_zero_ns: offset at `zero_ns`.
        drift: nanoseconds by which the offset grows in a nanosecond.
        zero_ns: time of the rank's clock at which the line has the value `at_zero_ns`.
        error_ns: possible error of the offset.
        largest_ns: offset with the largest absolute value in the trace.
    """

    at_zero_ns: int = 0
    drift: float = 0.0
    zero_ns: int = 0
    error_ns: int = 0
    largest_ns: int = 0

    @property
    def is_zero(self) -> bool:
        """Return whether the clock is taken as it is."""
        return not self.at_zero_ns and not self.drift

    def correct(self, time_ns: int) -> int:
        """Return the time of the reference clock."""
        return time_ns - self.at_zero_ns - round(self.drift * (time_ns - self.zero_ns))


@dataclass(frozen=True)
class ClockAlignment:
    """Offsets of all clocks.

    Attributes:
        offsets: offset of each rank's clock.
        unrelated: ranks whose clocks no collective relates to that of the lowest rank.
        contradictory: ranks whose collectives no offset reconciles with those of other ranks, as
            if collectives were missing in the trace.
    """

    offsets: Mapping[int, ClockOffset]
    unrelated: tuple[int, ...] = ()
    contradictory: tuple[int, ...] = ()


def align_clocks(ends: CollectiveEnds, hosts: Mapping[int, str]) -> ClockAlignment:
    """Return the offset of every rank's clock from that of the lowest rank.

    Ranks share one clock if their hosts have the same name, or none, unless the ends of their
    collectives prove that they do not. The clocks of hosts with different names always differ.

    Args:
        ends: collectives that all ranks of a group leave together.
        hosts: name of each rank's host, or "" if unknown.
    """
    neighbors = _find_neighbors(ends)
    offsets: dict[int, ClockOffset] = {}
    unrelated: list[int] = []
    contradictory: list[int] = []
    by_host: dict[str, int] = {}
    for first in sorted(hosts):
        if first in offsets:
            continue
        host = hosts[first]
        # A rank without any relation has the clock of its host, if the host is known.
        if host and host in by_host:
            offsets[first] = offsets[by_host[host]]
        else:
            unrelated += [first] if offsets else []
            offsets[first] = ClockOffset()
        by_host.setdefault(host, first)
        queue = deque([first])
        while queue:
            near = queue.popleft()
            for rank in sorted(neighbors.get(near, set()) - offsets.keys()):
                known = by_host.get(hosts[rank], near)
                parent = known if known in neighbors[rank] else near
                same_host = hosts[rank] in ("", hosts[parent]) or not hosts[parent]
                shared = _pair_ends(ends[rank], ends[parent])
                offset = _relate(shared, offsets[parent], same_host)
                if _is_contradictory(shared, offset, offsets[parent]):
                    contradictory.append(rank)
                    offset = offsets[parent] if same_host else offset
                offsets[rank] = offset
                by_host.setdefault(hosts[rank], rank)
                if first in unrelated:
                    unrelated.append(rank)
                queue.append(rank)
    return ClockAlignment(offsets, tuple(sorted(unrelated)), tuple(sorted(contradictory)))


def _find_neighbors(ends: CollectiveEnds) -> Mapping[int, set[int]]:
    members: dict[Hashable, list[int]] = {}
    for rank, own in ends.items():
        for key in own:
            members.setdefault(key, []).append(rank)
    found: dict[int, set[int]] = {rank: set() for rank in ends}
    for together in {tuple(ranks) for ranks in members.values()}:
        for rank in together:
            found[rank].update(together)
    return found


_Pairs = Sequence[tuple[CollectiveEnd, CollectiveEnd]]


def _pair_ends(
    own: Mapping[Hashable, CollectiveEnd], other: Mapping[Hashable, CollectiveEnd]
) -> _Pairs:
    """Return the collectives that two ranks share, in the order of their ends."""
    shared = [(own[key], other[key]) for key in own.keys() & other.keys()]
    return sorted(shared, key=lambda pair: pair[0].end_ns)


def _relate(shared: _Pairs, known: ClockOffset, same_host: bool) -> ClockOffset:
    """Return the offset of a rank's clock, from the ends that another rank recorded.

    Args:
        shared: collectives of both ranks.
        known: offset of the other rank's clock.
        same_host: whether both ranks have the same clock, unless the contrary is proven.
    """
    if same_host and not _is_proven(shared, known):
        return known
    times = np.array([mine.end_ns for mine, _ in shared], dtype=np.int64)
    apart = _to_array(mine.end_ns - known.correct(theirs.end_ns) for mine, theirs in shared)
    zero_ns = int(times[len(times) // 2])
    drift = _measure_drift(times - zero_ns, apart)
    level = apart - drift * (times - zero_ns)
    at_zero_ns = round(float(np.median(level)))
    error_ns = int(np.percentile(np.abs(level - at_zero_ns), _ERROR_PERCENTILE)) + 1
    over_time = at_zero_ns + drift * (times[[0, -1]] - zero_ns)
    return ClockOffset(
        at_zero_ns=at_zero_ns,
        drift=drift,
        zero_ns=zero_ns,
        error_ns=known.error_ns + error_ns,
        largest_ns=round(float(over_time[np.argmax(np.abs(over_time))])),
    )


def _to_array(values: Iterable[int]) -> IntArray:
    return np.array(list(values), dtype=np.int64)


def _is_proven(shared: _Pairs, known: ClockOffset) -> bool:
    """Return whether the ends of collectives show that two clocks differ.

    Either the ends differ consistently by more than a millisecond, or increasingly, or a rank
    arrived after another one had left, which is impossible on one clock.
    """
    times = _to_array(known.correct(mine.end_ns) for mine, _ in shared)
    apart = times - _to_array(known.correct(theirs.end_ns) for _, theirs in shared)
    if _measure_drift(times - times[0], apart) != 0.0:
        return True
    middle = float(np.median(apart))
    spread = float(np.median(np.abs(apart - middle)))
    is_consistent = abs(middle) > _MIN_OFFSET_NS and spread <= abs(middle) / 2
    return is_consistent or _are_impossible(shared, known, known, MIN_OVERLAP_NS)


def _is_contradictory(shared: _Pairs, own: ClockOffset, other: ClockOffset) -> bool:
    return _are_impossible(shared, own, other, _CONTRADICTION_NS)


def _are_impossible(
    shared: _Pairs, own: ClockOffset, other: ClockOffset, tolerance_ns: int
) -> bool:
    """Return whether one rank often arrived after the other had left."""
    impossible = sum(
        own.correct(mine.launch_ns) - other.correct(theirs.over_ns) > tolerance_ns
        or other.correct(theirs.launch_ns) - own.correct(mine.over_ns) > tolerance_ns
        for mine, theirs in shared
    )
    return impossible > _IMPOSSIBLE_SHARE * len(shared)


def _measure_drift(times: IntArray, apart: IntArray) -> float:
    """Return the median of the slopes between any two differences, or 0 without a clear drift.

    Args:
        times: times of the differences in nanoseconds, ascending, [N].
        apart: differences of two clocks in nanoseconds, [N].
    """
    if len(times) < _MIN_ENDS_OF_DRIFT or times[0] == times[-1]:
        return 0.0
    chosen = np.unique(np.linspace(0, len(times) - 1, _MAX_SLOPE_POINTS).astype(np.int64))
    first, second = np.triu_indices(len(chosen), 1)
    x, y = times[chosen].astype(np.float64), apart[chosen].astype(np.float64)
    run = x[second] - x[first]
    slope = float(np.median((y[second] - y[first])[run > 0] / run[run > 0]))
    level: FloatArray = apart - slope * times
    residual = float(np.median(np.abs(level - np.median(level))))
    total = abs(slope) * float(times[-1] - times[0])
    return slope if total > max(_MIN_DRIFT_NS, _DRIFT_PER_RESIDUAL * residual) else 0.0
