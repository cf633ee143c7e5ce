"""What the kernels' TCP counters say of each link: the only evidence that names one.

A collective slows everyone alike, so spans cannot tell which link held it up. But a link that keeps
up is idle while it waits for its peers, so bytes over *busy* time (unacknowledged data outstanding,
receiver not the limit) is each link's own rate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from laggard.analysis.detection.intervals import MIN_Z
from laggard.analysis.tables.columns import BoolArray, FloatArray, IntArray, LinkColumns
from laggard.analysis.tables.load_run import RankHost

MIN_SHARE_OF_BYTES = 0.25
MIN_SAMPLES = 5
MIN_NAMED_SLOWDOWN = 1.1
MIN_BUSY_BLAME = 0.7
MIN_RTT_BLAME = 0.4
MIN_LEAD_RATIO = 1.25
MIN_RTT_RATIO = 1.3
MIN_SCATTER = 0.05
"""Of equal links: in runs on level links their rates, and what they reached, differ by up to a
tenth."""


@dataclass(frozen=True)
class SampleWindow:
    """Some time: which link samples fall into it, [N], and how many steps."""

    rows: BoolArray
    steps: int


@dataclass(frozen=True)
class Link:
    """One direction between two hosts during some time.

    Attributes:
        src: sending host.
        dst: receiving host.
        rate_mbps: bytes acknowledged over busy time.
        busy_s: busy seconds.
        delivery_mbps: upper quartile of the kernel's delivery rate where the application was not
            the limit (NaN: never).
        peak_mbps: upper decile of the delivery rate whatever the limit: it can carry at least
            that.
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
        """(src, dst)."""
        return (self.src, self.dst)


@dataclass(frozen=True)
class SlowLink:
    """A link that is slower than it was, or than the fastest class of links.

    Attributes:
        ends: (src, dst); of several links alike in a tier pair, the slowest.
        tiers: their tiers, in alphabetical order.
        slowdown: ratio of rates.
        busy_s: its busy seconds.
        needed_s: busy seconds that it would have needed at the reference rate.
        z: robust z of the slowdown against the scatter of the links it is compared with.
    """

    ends: tuple[str, str]
    tiers: tuple[str, str]
    slowdown: float
    busy_s: float
    needed_s: float
    z: float

    @property
    def confidence(self) -> float:
        """Probability that its z is at least what makes a link slow."""
        return 0.5 * (1.0 + math.erf((self.z - MIN_Z) / math.sqrt(2.0)))


@dataclass(frozen=True)
class SlowLinks:
    """Links slow all along, the busiest of those that are not (seconds), and the tiers of the
    fastest class; None where there were none to compare.
    """

    links: tuple[SlowLink, ...]
    others_busy_s: float
    fleet: tuple[str, str] | None = None


def measure_links(links: LinkColumns, during: BoolArray) -> tuple[Link, ...]:
    """Measures every connection that carried a good part of the traffic.

    Args:
        links: TCP samples.
        during: which rows count, [N]; counters advance only between two rows in a row that both
            count.

    Returns:
        One entry per ordered host pair with at least a quarter of the busiest pair's bytes.
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
    """Bytes that were acknowledged, by (from, to)."""
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
    """How far a cumulative counter got since the row before; 0 where that row is another
    connection's.
    """
    step = np.diff(counter, prepend=counter[:1])
    return np.where(counted, np.maximum(step, 0), 0).astype(np.float64)


def _compute_busy_us(table: LinkColumns, counted: BoolArray) -> FloatArray:
    limited = _compute_increments(table.rwnd_limited_us, counted)
    busy = _compute_increments(table.busy_us, counted)
    return np.maximum(busy - limited, 0.1 * busy)


def _compute_delivery_mbps(table: LinkColumns, rows: BoolArray) -> float:
    rates = table.delivery_rate_mbps[rows & ~table.app_limited]
    return float(np.quantile(rates, 0.75)) if len(rates) else float("nan")


def get_tier_pair(ends: tuple[str, str], tiers: Mapping[str, str]) -> tuple[str, str]:
    """The tiers of a link's ends, in alphabetical order."""
    first, second = sorted(tiers.get(end, end) for end in ends)
    return (first, second)


def find_changed_link(
    links: LinkColumns,
    inside: SampleWindow,
    outside: SampleWindow,
    excess_s: float,
    hosts: tuple[RankHost, ...],
) -> tuple[str, str] | None:
    """The link that held up the collectives of an interval, if one tier pair stands out.

    A link that holds up a ring is busy longer by what the collective takes longer; its round trip
    may show it, too. Others are only grazed (acknowledgements delayed by peers that wait), which is
    why seconds are compared, not ratios.

    Args:
        links: TCP samples.
        inside: the interval.
        outside: what to compare with.
        excess_s: how much longer a step's transfer took than usual.
        hosts: the ranks' hosts, for their tiers.

    Returns:
        (src, dst) of the tier pair's link that changed most, or None.
    """
    changes = _compare_links(links, inside, outside)
    hops = 2 * max(len(hosts) - 1, 1)
    by_busy = [(change.busy_s / excess_s, change.link) for change in changes]
    by_rtt = [(change.rtt_s * hops / excess_s, change.link) for change in changes]
    return _find_leader(by_busy, MIN_BUSY_BLAME, hosts) or _find_leader(
        by_rtt, MIN_RTT_BLAME, hosts
    )


@dataclass(frozen=True)
class _LinkDifference:
    """How much busier (seconds per step) and farther (seconds per round trip) a link was inside
    than outside.
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
    """The link of the tier pair with the highest score, if high enough and clearly above the next
    pair's.
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
    """Whether some link changed enough to account for the interval's excess (arguments as
    `find_changed_link`).
    """
    hops = 2 * max(len(hosts) - 1, 1)
    return any(
        change.busy_s >= MIN_BUSY_BLAME * excess_s
        or change.rtt_s * hops >= MIN_RTT_BLAME * excess_s
        for change in _compare_links(links, inside, outside)
    )


def find_slow_links(links: LinkColumns, usual: BoolArray, tiers: Mapping[str, str]) -> SlowLinks:
    """Links that are slower than the fastest class of links all along.

    A class is a tier pair; its rate is the median of its links'. The reference is the fastest class
    between tiers (a tier's own network is no measure for what lies between tiers) or, where only
    one tier is, the fastest there is. Slow is, by bytes over busy time, farther below that class
    than its links are from each other (robust z >= 3.5), confirmed by what it reached at best, as
    far below, or by the least round trip (1.3x): delayed acknowledgements lengthen busy time.

    Args:
        links: TCP samples.
        usual: rows outside any dynamic interval, [N].
        tiers: of every host.

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
    """Whether the kernel's own rate, or the least round trip, says so too."""
    min_rtt_ms = float(np.median([m.min_rtt_ms for m in fleet]))
    slower = (
        not np.isnan(link.delivery_mbps)
        and _compute_z([m.peak_mbps for m in fleet], link.peak_mbps) >= MIN_Z
    )
    return bool(slower or link.min_rtt_ms >= MIN_RTT_RATIO * min_rtt_ms)


def _compute_z(fleet: list[float], rate: float) -> float:
    """How far a rate is below the median of a class (log), in units of the class's scatter (no less
    than 5 %).
    """
    logs = np.log(fleet)
    scatter = 1.4826 * float(np.median(np.abs(logs - np.median(logs))))
    return float((np.median(logs) - np.log(rate)) / np.hypot(MIN_SCATTER, scatter))
