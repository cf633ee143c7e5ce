"""What TCP counters say of links: rates, which link changed, which is slow all along, and what must
not mislead."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from laggard.analysis.detection.links import (
    SampleWindow,
    find_changed_link,
    find_slow_links,
    has_changed_link,
    measure_links,
)
from laggard.analysis.evaluate.synthetic.link_samples import LinkWork, sample_links
from laggard.analysis.tables.columns import LinkColumns
from laggard.analysis.tables.load_run import RankHost, create_empty_links

NAMES = ("cloud.a.1.1", "cloud.a.1.2", "fog.a.1.1", "edge.a.1.1")
HOSTS = tuple(
    RankHost(r, name, "", name.split(".")[0], "cpu", 1.0, 0, 0) for r, name in enumerate(NAMES)
)
TIERS = {host.host: host.tier for host in HOSTS}
RING = tuple((NAMES[r], NAMES[(r + 1) % 4]) for r in range(4))
STEPS, STEP_S, BYTES = 200, 0.25, 1_000_000


def sampled(*rates: float, slowed: dict[int, float] | None = None) -> LinkColumns:
    """Ring links at these rates; the second half of the steps at a fraction for some."""
    rate = np.tile(np.array(rates), (STEPS, 1))
    for link, factor in (slowed or {}).items():
        rate[STEPS // 2 :, link] /= factor
    return sample_links(LinkWork(RING, rate, np.arange(1, STEPS + 1) * STEP_S, BYTES), 0)


def halves(links: LinkColumns) -> tuple[SampleWindow, SampleWindow]:
    late = links.time_ns > STEPS // 2 * STEP_S * 1e9
    return SampleWindow(late, STEPS // 2), SampleWindow(~late, STEPS // 2)


def grazed(links: LinkColumns, link: int, seconds_per_step: float) -> LinkColumns:
    """As if acknowledgements on a link were delayed in the second half."""
    late = np.maximum(links.time_ns / 1e9 / STEP_S - STEPS // 2, 0.0)
    own = (links.src == RING[link][0]) & (links.dst == RING[link][1])
    extra = np.where(own, late * seconds_per_step * 1e6, 0).astype(np.int64)
    return dataclasses.replace(links, busy_us=links.busy_us + extra)


def everything(links: LinkColumns) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.ones(len(links), dtype=np.bool_)


def excess_s(rate: float, factor: float) -> float:
    return BYTES * 8e-6 / rate * (factor - 1.0)


def test_rates_are_bytes_over_busy_time() -> None:
    links = sampled(100.0, 50.0, 25.0, 100.0)
    rate = {link.ends: link.rate_mbps for link in measure_links(links, everything(links))}
    assert [rate[ends] for ends in RING] == pytest.approx([100.0, 50.0, 25.0, 100.0], rel=0.05)


def test_time_that_the_receiver_held_up_is_not_the_links() -> None:
    links = sampled(100.0, 100.0, 100.0, 100.0)
    held = dataclasses.replace(links, busy_us=links.busy_us * 3, rwnd_limited_us=links.busy_us * 2)
    found = measure_links(held, everything(links))
    assert [link.rate_mbps for link in found] == pytest.approx([100.0] * 4, rel=0.05)


def test_little_traffic_says_nothing() -> None:
    links = sampled(100.0, 100.0, 100.0, 100.0)
    quiet = (links.src == RING[1][0]) & (links.dst == RING[1][1])
    less = dataclasses.replace(
        links, bytes_acked=np.where(quiet, links.bytes_acked // 100, links.bytes_acked)
    )
    assert {link.ends for link in measure_links(less, everything(links))} == set(RING) - {RING[1]}


def test_a_new_connection_starts_counting_anew() -> None:
    links = sampled(100.0, 100.0, 100.0, 100.0)
    late = links.time_ns > 20e9
    start = links.bytes_acked[late].min()
    again = dataclasses.replace(
        links,
        src_port=np.where(late, 50_000, links.src_port),
        bytes_acked=np.where(late, links.bytes_acked - start, links.bytes_acked),
    )
    found = measure_links(again, everything(links))
    assert [link.rate_mbps for link in found] == pytest.approx([100.0] * 4, rel=0.05)


@pytest.mark.parametrize("link", range(4))
def test_the_link_that_changed_is_named(link: int) -> None:
    links = sampled(100.0, 100.0, 100.0, 100.0, slowed={link: 3.0})
    inside, outside = halves(links)
    assert find_changed_link(links, inside, outside, excess_s(100.0, 3.0), HOSTS) == RING[link]
    assert has_changed_link(links, inside, outside, excess_s(100.0, 3.0), HOSTS)


def test_two_that_changed_alike_leave_it_open() -> None:
    links = sampled(100.0, 100.0, 100.0, 100.0, slowed={1: 3.0, 3: 3.0})
    assert find_changed_link(links, *halves(links), excess_s(100.0, 3.0), HOSTS) is None


def test_delayed_acknowledgements_elsewhere_do_not_mislead() -> None:
    excess = excess_s(100.0, 3.0)
    links = grazed(sampled(400.0, 100.0, 100.0, 100.0, slowed={3: 3.0}), 0, 0.6 * excess)
    assert find_changed_link(links, *halves(links), excess, HOSTS) == RING[3]
    alone = grazed(sampled(400.0, 100.0, 100.0, 100.0), 0, 0.6 * excess)
    assert find_changed_link(alone, *halves(alone), excess, HOSTS) is None
    assert not has_changed_link(alone, *halves(alone), excess, HOSTS)


def test_no_samples_no_names() -> None:
    links, none = create_empty_links(), np.array([], dtype=np.bool_)
    assert measure_links(links, none) == ()
    assert (
        find_changed_link(links, SampleWindow(none, 1), SampleWindow(none, 1), 1.0, HOSTS) is None
    )
    assert find_slow_links(links, none, TIERS).links == ()


def test_equal_links_are_not_slow_whatever_a_tiers_own_network_does() -> None:
    level, fast_inside = sampled(100.0, 100.0, 100.0, 100.0), sampled(2000.0, 100.0, 100.0, 100.0)
    assert find_slow_links(level, everything(level), TIERS).links == ()
    assert find_slow_links(fast_inside, everything(fast_inside), TIERS).links == ()


def test_a_slow_class_is_held_against_the_fastest_between_tiers() -> None:
    links = sampled(2000.0, 200.0, 100.0, 40.0)
    found = {slow.tiers: slow for slow in find_slow_links(links, everything(links), TIERS).links}
    assert set(found) == {("edge", "fog"), ("cloud", "edge")}
    assert found["cloud", "edge"].ends == RING[3]
    assert found["cloud", "edge"].slowdown == pytest.approx(5.0, rel=0.1)


def test_busy_time_alone_does_not_make_a_link_slow() -> None:
    links = sampled(100.0, 100.0, 100.0, 100.0)
    own = (links.src == RING[3][0]) & (links.dst == RING[3][1])
    stalled = dataclasses.replace(links, busy_us=np.where(own, links.busy_us * 3, links.busy_us))
    assert find_slow_links(stalled, everything(links), TIERS).links == ()


@pytest.mark.parametrize(("slowness", "slow"), [(1.12, False), (1.3, True), (1.5, True)])
def test_slow_is_farther_off_than_equal_links_are_from_each_other(
    slowness: float, slow: bool
) -> None:
    links = sampled(100.0, 100.0, 100.0, 100.0 / slowness)
    assert [each.ends for each in find_slow_links(links, everything(links), TIERS).links] == (
        [RING[3]] if slow else []
    )


def test_where_links_differ_more_it_takes_more_to_be_slow() -> None:
    """Of a tier's links some carry a quarter more than others; one that lags by 30 % is no
    exception then."""
    one_tier = dict.fromkeys(NAMES, "edge")
    level, unlike = sampled(100.0, 101.0, 99.0, 70.0), sampled(125.0, 100.0, 78.0, 70.0)
    assert len(find_slow_links(level, everything(level), one_tier).links) == 1
    assert find_slow_links(unlike, everything(unlike), one_tier).links == ()
