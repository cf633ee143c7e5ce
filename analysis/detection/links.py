"""Speed of every link according to the kernels' TCP counters.

Only these counters can name a link. A collective slows all ranks alike, so spans cannot tell which
link delayed it. But a link that keeps up is idle while it waits for its peers. Bytes divided by
*busy* time (data is unacknowledged and the receiver is not the limit) are therefore each link's
own rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.intervals import MIN_Z
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, LinkColumns
from laggard.analysis.tables.load_run import RankHost

# A connection with less of the busiest pair's bytes, or fewer samples, is not measured.
MIN_SHARE_OF_BYTES = 0.25
MIN_SAMPLES = 5
# Rules for naming the link that delayed a transfer: its rate must have fallen by this factor, it
# must account for this share of the excess (busy time or round trips), and it must lead the next
# tier pair by this ratio.
MIN_NAMED_SLOWDOWN = 1.1
MIN_BUSY_BLAME = 0.7
MIN_RTT_BLAME = 0.4
MIN_LEAD_RATIO = 1.25
MIN_RTT_RATIO = 1.3
MIN_SCATTER = 0.05
"""Least scatter of equal links, in log. In runs on equal links, their rates and peak rates
differ by up to a tenth."""


@dataclass(frozen=True)
class SampleWindow:
    """Part of a run: a mask of its link samples, [N], and its number of steps."""

    rows: BoolArray
    steps: int


@dataclass(frozen=True)
class Link:
    """One direction between two hosts during part of a run.

    Attributes:
        src: sending host.
        dst: receiving host.
        rate_mbps: acknowledged bytes divided by busy time.
        busy_s: busy seconds.
        delivery_mbps: upper quartile of the kernel's delivery rate while the application was not
            the limit; NaN if it always was.
        peak_mbps: upper decile of the delivery rate under any limit; the link can carry at least
            this.
        rtt_ms: median smoothed round trip.
        min_rtt_ms: least round trip, which queues and delayed acknowledgements do not lengthen.
    """

    src: str
    dst: str
    rate_mbps: float
    busy_s: float
    delivery_mbps: float
    peak_mbps: float
    rtt_ms: float
    min_rtt_ms: float

    @property
    def ends(self) -> tuple[str, str]:
        """Return (src, dst)."""
        return (self.src, self.dst)


@dataclass(frozen=True)
class SlowLink:
    """Link that is slower than the fastest class of links.

    Attributes:
        ends: (src, dst) of the slowest link of its tier pair.
        tiers: tiers of the ends, in alphabetical order.
        slowdown: ratio of the reference rate to the link's rate.
        busy_s: busy seconds of the link.
        needed_s: busy seconds that it would have needed at the reference rate.
        z: robust z of the slowdown against the scatter of the reference links.
    """

    ends: tuple[str, str]
    tiers: tuple[str, str]
    slowdown: float
    busy_s: float
    needed_s: float
    z: float

    @property
    def confidence(self) -> float:
        """Return the probability that the true z reaches the threshold of a slow link."""
        return 0.5 * (1.0 + math.erf((self.z - MIN_Z) / math.sqrt(2.0)))


@dataclass(frozen=True)
class SlowLinks:
    """Links that are slow throughout the run.

    Attributes:
        links: slowest link of each slow tier pair.
        others_busy_s: busy seconds of the busiest link in the other tier pairs.
        fleet: tiers of the fastest class; None if there were fewer than two links to compare.
    """

    links: tuple[SlowLink, ...]
    others_busy_s: float
    fleet: tuple[str, str] | None = None


def measure_links(links: LinkColumns, during: BoolArray) -> tuple[Link, ...]:
    """Measure every connection that carried a substantial part of the traffic.

    Args:
        links: TCP samples.
        during: mask of the rows that count, [N]. Counters advance only between two consecutive
            rows of a connection that both count.

    Returns:
        One entry per ordered host pair with at least a quarter of the busiest pair's bytes and at
        least five samples.
    """
    if not len(links):
        return ()
    order = np.lexsort((links.time_ns, links.dst_port, links.src_port, links.dst, links.src))
    table, counted = links.where(order), during[order]
    same = np.ones(len(table), dtype=np.bool_)
    for column in (table.src, table.dst, table.src_port, table.dst_port):
        same[1:] &= column[1:] == column[:-1]
    same[0] = False
    both = same & counted & np.concatenate([[False], counted[:-1]])
    names, pair = np.unique(
        np.char.add(np.char.add(table.src, "\n"), table.dst), return_inverse=True
    )
    carried = np.bincount(
        pair, weights=_compute_increments(table.bytes_acked, both), minlength=len(names)
    )
    busy = np.bincount(pair, weights=_compute_busy_us(table, both), minlength=len(names)) * 1e-6
    enough = (carried > 0) & (busy > 0) & (carried >= MIN_SHARE_OF_BYTES * carried.max())
    enough &= np.bincount(pair[counted], minlength=len(names)) >= MIN_SAMPLES
    found = []
    for index in np.flatnonzero(enough):
        src, _, dst = str(names[index]).partition("\n")
        rows = (pair == index) & counted
        rate_mbps = float(carried[index] * 8e-6 / busy[index])
        peak_mbps = float(np.quantile(table.delivery_rate_mbps[rows], 0.9))
        min_rtt_ms = float(np.median(table.min_rtt_us[rows])) / 1e3
        # Connections of a host with itself do not use the emulated network.
        if src != dst:
            delivery_mbps = _compute_delivery_mbps(table, rows)
            rtt_ms = float(np.median(table.rtt_us[rows])) / 1e3
            found.append(
                Link(
                    src,
                    dst,
                    rate_mbps,
                    float(busy[index]),
                    delivery_mbps,
                    peak_mbps,
                    rtt_ms,
                    min_rtt_ms,
                )
            )
    return tuple(found)


def sum_carried_bytes(links: LinkColumns) -> dict[tuple[str, str], float]:
    """Return the acknowledged bytes by (source host, destination host).

    Counters are cumulative per connection, so the greatest value of each port pair counts.
    """
    carried: dict[tuple[str, str], float] = {}
    keys = np.column_stack([links.src_port, links.dst_port])
    for src, dst in {*zip(links.src.tolist(), links.dst.tolist(), strict=True)}:
        rows = (links.src == src) & (links.dst == dst)
        ports, index = np.unique(keys[rows], axis=0, return_inverse=True)
        acked = links.bytes_acked[rows]
        most = np.zeros(len(ports))
        np.maximum.at(most, index.reshape(-1), acked.astype(np.float64))
        carried[src, dst] = float(most.sum())
    return carried


def _compute_increments(counter: IntArray, counted: BoolArray) -> FloatArray:
    """Return the advance of a cumulative counter since the previous row.

    It is 0 where `counted` is false: the previous row belongs to another connection, or does not
    count.
    """
    step = np.diff(counter, prepend=counter[:1])
    return np.where(counted, np.maximum(step, 0), 0).astype(np.float64)


def _compute_busy_us(table: LinkColumns, counted: BoolArray) -> FloatArray:
    limited = _compute_increments(table.rwnd_limited_us, counted)
    busy = _compute_increments(table.busy_us, counted)
    # The floor keeps the busy time positive if the receiver was the limit nearly all the time.
    return np.maximum(busy - limited, 0.1 * busy)


def _compute_delivery_mbps(table: LinkColumns, rows: BoolArray) -> float:
    rates = table.delivery_rate_mbps[rows & ~table.app_limited]
    return float(np.quantile(rates, 0.75)) if len(rates) else float("nan")


def get_tier_pair(ends: tuple[str, str], tiers: Mapping[str, str]) -> tuple[str, str]:
    """Return the tiers of a link's ends, alphabetically; an unknown host is its own tier."""
    first, second = sorted(tiers.get(end, end) for end in ends)
    return (first, second)


def find_changed_link(
    links: LinkColumns,
    inside: SampleWindow,
    outside: SampleWindow,
    excess_s: float,
    hosts: tuple[RankHost, ...],
) -> tuple[str, str] | None:
    """Return the link that delayed the collectives of an interval, if one tier pair stands out.

    The slow link of a ring is busy longer by the excess of the collective. Its round trip may show
    the excess, too. Other links change only slightly (peers that wait delay their
    acknowledgements), so seconds are compared instead of ratios.

    Args:
        links: TCP samples.
        inside: the slow interval.
        outside: part of the run to compare with.
        excess_s: seconds by which a step's transfer took longer than usual.
        hosts: hosts of the ranks, for their tiers.

    Returns:
        (src, dst) of the tier pair's link that changed most, or None.
    """
    changes = _compare_links(links, inside, outside)
    # A ring all-reduce of W ranks passes 2 (W - 1) messages in sequence, each of which the longer
    # round trip delays.
    hops = 2 * max(len(hosts) - 1, 1)
    by_busy = [(change.busy_s / excess_s, change.link) for change in changes]
    by_rtt = [(change.rtt_s * hops / excess_s, change.link) for change in changes]
    return _find_leader(by_busy, MIN_BUSY_BLAME, hosts) or _find_leader(
        by_rtt, MIN_RTT_BLAME, hosts
    )


@dataclass(frozen=True)
class _LinkDifference:
    """Difference of a link inside and outside an interval.

    `busy_s` is in busy seconds per step, `rtt_s` in seconds per round trip.
    """

    link: Link
    busy_s: float
    rtt_s: float


def _compare_links(
    links: LinkColumns, inside: SampleWindow, outside: SampleWindow
) -> list[_LinkDifference]:
    before = {link.ends: link for link in measure_links(links, outside.rows)}
    changes = []
    for link in measure_links(links, inside.rows):
        usual = before.get(link.ends)
        if usual is not None and usual.rate_mbps >= MIN_NAMED_SLOWDOWN * link.rate_mbps:
            busy_s = link.busy_s / inside.steps - usual.busy_s / outside.steps
            changes.append(_LinkDifference(link, busy_s, (link.rtt_ms - usual.rtt_ms) * 1e-3))
    return changes


def _find_leader(
    scores: list[tuple[float, Link]], least: float, hosts: tuple[RankHost, ...]
) -> tuple[str, str] | None:
    """Return the link of the tier pair with the highest score.

    The score must reach `least` and exceed the next pair's by `MIN_LEAD_RATIO`; else the result is
    None.
    """
    tiers = {host.host: host.tier for host in hosts}
    best: dict[tuple[str, str], tuple[float, Link]] = {}
    for score, link in scores:
        pair = get_tier_pair(link.ends, tiers)
        if pair not in best or score > best[pair][0]:
            best[pair] = (score, link)
    ranked = sorted(best.values(), key=lambda entry: -entry[0])
    if not ranked or ranked[0][0] < least:
        return None
    alone = len(ranked) == 1 or ranked[0][0] >= MIN_LEAD_RATIO * ranked[1][0]
    return ranked[0][1].ends if alone else None


def has_changed_link(
    links: LinkColumns,
    inside: SampleWindow,
    outside: SampleWindow,
    excess_s: float,
    hosts: tuple[RankHost, ...],
) -> bool:
    """Return whether any link changed enough to explain the interval's excess.

    The arguments are those of `find_changed_link`.
    """
    hops = 2 * max(len(hosts) - 1, 1)
    return any(
        change.busy_s >= MIN_BUSY_BLAME * excess_s
        or change.rtt_s * hops >= MIN_RTT_BLAME * excess_s
        for change in _compare_links(links, inside, outside)
    )


def find_slow_links(links: LinkColumns, usual: BoolArray, tiers: Mapping[str, str]) -> SlowLinks:
    """Find the links that are slower than the fastest class of links throughout the run.

    A class is a tier pair, and its rate is the median of its links' rates. The reference is the
    fastest class between two tiers; a network inside a tier is no measure for links between tiers.
    If all links are inside tiers, the fastest of those classes is the reference.

    A link is slow if both conditions hold:

    - Its rate (bytes over busy time) is below the reference by a robust z of at least 3.5, in
      units of the scatter of the reference class.
    - Its peak delivery rate is below those of the reference by the same z, or its least round trip
      is at least 1.3 times as long. This excludes links whose busy time only delayed
      acknowledgements lengthen.

    Args:
        links: TCP samples.
        usual: mask of the rows outside all dynamic intervals, [N].
        tiers: tier of every host.

    Returns:
        The slowest link of each tier pair that has slow ones.
    """
    measured = measure_links(links, usual)
    classes: dict[tuple[str, str], list[Link]] = {}
    for link in measured:
        classes.setdefault(get_tier_pair(link.ends, tiers), []).append(link)
    if len(measured) < 2:
        return SlowLinks((), 0.0)
    rates = {
        pair: float(np.median([m.rate_mbps for m in members])) for pair, members in classes.items()
    }
    between = [pair for pair in rates if pair[0] != pair[1]]
    fleet = max(between or rates, key=lambda pair: rates[pair])
    found = []
    for pair, members in classes.items():
        slowest = min(members, key=lambda m: m.rate_mbps)
        ratio = rates[fleet] / slowest.rate_mbps
        z = _compute_z([m.rate_mbps for m in classes[fleet]], slowest.rate_mbps)
        if z >= MIN_Z and _is_confirmed(slowest, classes[fleet]):
            found.append(
                SlowLink(slowest.ends, pair, ratio, slowest.busy_s, slowest.busy_s / ratio, z)
            )
    slow_pairs = {slow.tiers for slow in found}
    others = [m.busy_s for m in measured if get_tier_pair(m.ends, tiers) not in slow_pairs]
    return SlowLinks(tuple(found), max(others, default=0.0), fleet)


def _is_confirmed(link: Link, fleet: list[Link]) -> bool:
    """Return whether the kernel's delivery rate or the least round trip also shows a slow link."""
    min_rtt_ms = float(np.median([m.min_rtt_ms for m in fleet]))
    slower = (
        not np.isnan(link.delivery_mbps)
        and _compute_z([m.peak_mbps for m in fleet], link.peak_mbps) >= MIN_Z
    )
    return bool(slower or link.min_rtt_ms >= MIN_RTT_RATIO * min_rtt_ms)


def _compute_z(fleet: list[float], rate: float) -> float:
    """Return the distance of a rate below the median of a class, in units of the class's scatter.

    Both are in log; the scatter is at least 5 %.
    """
    logs = np.log(fleet)
    scatter = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return float((np.median(logs) - np.log(rate)) / np.hypot(MIN_SCATTER, scatter))
