"""Events expanded to changes, and what is in effect while they overlap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.emulated_drive import DriveLimits
from laggard.core.errors import ScenarioError
from laggard.core.hosts import Host
from laggard.network_emulation.dynamics import (
    Overlay,
    TimedChange,
    TracePoint,
    expand_events,
    peak_rates,
    peak_shares,
)
from laggard.network_emulation.link_plan import Constraint
from laggard.network_emulation.links.plan_links import plan_links
from laggard.network_emulation.model import Heterogeneity, Network

_HOSTS = (
    *(Host(f"edge.w.1.{i}", "edge", "w", 1, i) for i in (1, 2)),
    Host("cloud.w.1.1", "cloud", "w", 1, 1),
)
_EDGES = ("edge.w.1.1", "edge.w.1.2")
_UP = (("edge.w.1.1", "cloud.w.1.1"), ("edge.w.1.2", "cloud.w.1.1"))


def _expand(
    *events: dict[str, object],
    horizon_s: float = 1000.0,
    traces: dict[str, tuple[TracePoint, ...]] | None = None,
) -> tuple[TimedChange, ...]:
    heterogeneity = Heterogeneity.model_validate({"dynamic": list(events)})
    plan = plan_links(Network(networks=None), heterogeneity, _HOSTS)
    return expand_events(heterogeneity, _HOSTS, plan, horizon_s, traces)


def test_a_timed_cpu_event_begins_and_ends() -> None:
    begin, end = _expand({"at": "20s", "for": "10s", "hosts": "edge.*", "cpu": "5%"})
    assert (begin.at_s, begin.kind, begin.targets, begin.values) == (
        20,
        "begin",
        _EDGES,
        (("cpu", 0.05),),
    )
    assert (end.at_s, end.kind, end.targets, end.values) == (30, "end", _EDGES, ())


def test_a_timed_link_event_reaches_all_its_pairs() -> None:
    begin, _ = _expand(
        {
            "at": "1s",
            "for": "1s",
            "src": "edge.*",
            "dst": "cloud.*",
            "rate": "1mbit",
            "symmetric": True,
        }
    )
    assert set(begin.targets) == {*_UP, *((dst, src) for src, dst in _UP)}
    assert begin.values == (("rate_mbps", 1.0),)


def test_a_link_that_is_down_loses_every_packet() -> None:
    random = {"every": "10s", "for": "2s", "seed": 3}
    down, up, *_ = _expand({"random": random, "src": "edge.*", "dst": "cloud.*", "down": True})
    assert down.values == (("loss_percent", 100.0),)
    assert (up.at_s - down.at_s, up.values) == (2.0, ())


def test_an_event_of_storage_sets_what_it_says() -> None:
    begin, end = _expand(
        {
            "at": "20s",
            "for": "10s",
            "hosts": "edge.*",
            "cpu": "5%",
            "read": "500kB/s",
            "write_latency": "3ms",
        }
    )
    assert begin.values == (("cpu", 0.05), ("read_mb_per_s", 0.5), ("write_latency_ms", 3.0))
    assert (begin.targets, end.targets, end.values) == (_EDGES, _EDGES, ())


def test_events_of_storage_merge_over_the_base_and_over_each_other() -> None:
    changes = _expand(
        {"at": "1s", "for": "10s", "hosts": "edge.*", "read": "5MB/s", "read_latency": "2ms"},
        {"at": "2s", "for": "2s", "hosts": "edge.*", "read": "1MB/s", "write": "3MB/s"},
        {"at": "5s", "for": "1s", "hosts": "edge.*", "read_latency": "0ms", "cpu": "5%"},
    )
    base = DriveLimits(20.0, None, 1.0, 1.0)

    def drive(until_s: float) -> DriveLimits:
        overlay = Overlay({}, {}, {_EDGES[0]: base})
        for change in changes:
            if change.at_s <= until_s:
                overlay.apply(change)
        return overlay.drive(_EDGES[0])

    assert [drive(at_s) for at_s in (0, 2, 4, 5, 11)] == [
        base,
        DriveLimits(1.0, 3.0, 2.0, 1.0),
        DriveLimits(5.0, None, 2.0, 1.0),
        DriveLimits(5.0, None, 0.0, 1.0),
        base,
    ]


def test_nothing_begins_beyond_the_horizon() -> None:
    assert (
        _expand({"at": "20s", "for": "10s", "hosts": "edge.*", "cpu": "5%"}, horizon_s=20.0) == ()
    )


@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.floats(0.05, 0.95), st.integers(50, 500))
def test_random_events_keep_their_period_and_their_part_of_the_time(
    seed: int, every_s: int, part: float, periods: int
) -> None:
    for_s = round(every_s * part, 3)
    random = {"every": f"{every_s}s", "for": f"{for_s}s", "seed": seed}
    changes = _expand(
        {"random": random, "hosts": "edge.w.1.1", "cpu": "50%"}, horizon_s=float(every_s * periods)
    )
    begins = [c.at_s for c in changes if c.kind == "begin"]
    ends = [c.at_s for c in changes if c.kind == "end"]
    assert len(begins) == len(ends) == periods
    for period, (begin_s, end_s) in enumerate(zip(begins, ends, strict=True)):
        assert period * every_s <= begin_s
        assert end_s <= (period + 1) * every_s + 1e-6
    total_s = sum(ends) - sum(begins)
    assert total_s == pytest.approx(periods * for_s)


def test_random_moments_are_uniform_over_the_period() -> None:
    random = {"every": "10s", "for": "2s", "seed": 3}
    changes = _expand({"random": random, "hosts": "edge.w.1.1", "cpu": "50%"}, horizon_s=20_000.0)
    offsets = [c.at_s % 10 for c in changes if c.kind == "begin"]
    mean = sum(offsets) / len(offsets)
    assert mean == pytest.approx(4.0, abs=4 * 8 / 12**0.5 / len(offsets) ** 0.5)


def test_the_seed_decides_and_hosts_have_moments_of_their_own() -> None:
    def begins(seed: int) -> dict[str, list[float]]:
        random = {"every": "10s", "for": "2s", "seed": seed}
        changes = _expand({"random": random, "hosts": "edge.*", "cpu": "50%"}, horizon_s=100.0)
        return {
            h: [c.at_s for c in changes if c.kind == "begin" and h in c.targets] for h in _EDGES
        }

    assert begins(1) == begins(1) != begins(2)
    assert begins(1)[_EDGES[0]] != begins(1)[_EDGES[1]]


def test_links_of_a_random_event_change_together() -> None:
    random = {"every": "10s", "for": "2s", "seed": 1}
    changes = _expand(
        {"random": random, "src": "edge.*", "dst": "cloud.*", "loss": "1%"}, horizon_s=50.0
    )
    assert {c.targets for c in changes} == {_UP}


def test_a_trace_begins_steps_and_keeps_its_last_point() -> None:
    points = (TracePoint(0.0, (("rate_mbps", 8.0),)), TracePoint(2.0, (("rate_mbps", 3.0),)))
    changes = _expand(
        {"trace": "lte.csv", "src": "edge.*", "dst": "cloud.*"}, traces={"lte.csv": points}
    )
    assert [(c.at_s, c.kind, c.values) for c in changes] == [
        (0.0, "begin", (("rate_mbps", 8.0),)),
        (2.0, "step", (("rate_mbps", 3.0),)),
    ]


def test_a_trace_that_was_not_read_is_refused() -> None:
    with pytest.raises(ScenarioError, match=r"lte\.csv"):
        _expand({"trace": "lte.csv", "src": "edge.*", "dst": "cloud.*"})


def test_too_many_changes_are_refused() -> None:
    random = {"every": "10ms", "for": "1ms", "seed": 1}
    with pytest.raises(ScenarioError, match=r"dynamic\.0.*changes.*`every`"):
        _expand({"random": random, "hosts": "edge.*", "cpu": "50%"}, horizon_s=86_400.0)


def test_peak_rates_are_of_links_that_always_have_one() -> None:
    pairs = {
        ("a", "b"): Constraint(rate_mbps=10.0),
        ("b", "a"): Constraint(rate_mbps=10.0),
        ("a", "c"): Constraint(5.0),
    }
    raised = TimedChange(
        1.0, "begin", 0, (("a", "b"), ("a", "c")), (("delay_ms", 1.0), ("rate_mbps", 40.0))
    )
    lowered = TimedChange(2.0, "begin", 1, (("b", "a"),), (("rate_mbps", 1.0),))
    assert peak_rates(pairs, [raised, lowered]) == {("a", "b"): 40.0, ("b", "a"): 10.0}


def test_peak_shares_are_what_cores_are_planned_for() -> None:
    changes = _expand({"at": "1s", "for": "1s", "hosts": "edge.w.1.1", "cpu": "80%"})
    base = {"edge.w.1.1": 0.25, "edge.w.1.2": 0.25, "cloud.w.1.1": 1.0}
    assert peak_shares(base, changes) == {**base, "edge.w.1.1": 0.8}


def _overlay_after(changes: tuple[TimedChange, ...], until_s: float) -> Overlay:
    base = Constraint(delay_ms=10.0, jitter_ms=2.0, rate_mbps=100.0)
    overlay = Overlay(dict.fromkeys(_EDGES, 0.5), dict.fromkeys(_UP, base))
    for change in changes:
        if change.at_s <= until_s:
            overlay.apply(change)
    return overlay


@pytest.mark.parametrize(
    ("until_s", "share"), [(0, 0.5), (10, 0.2), (15, 0.1), (20, 0.1), (25, 0.5)]
)
def test_of_overlapping_events_the_last_begun_wins(until_s: float, share: float) -> None:
    changes = _expand(
        {"at": "10s", "for": "10s", "hosts": "edge.*", "cpu": "20%"},
        {"at": "15s", "for": "10s", "hosts": "edge.*", "cpu": "10%"},
    )
    assert _overlay_after(changes, until_s).share(_EDGES[0]) == share


@pytest.mark.parametrize(("until_s", "share"), [(12, 0.1), (15, 0.2), (20, 0.5)])
def test_an_event_inside_another_gives_back_to_it(until_s: float, share: float) -> None:
    changes = _expand(
        {"at": "10s", "for": "10s", "hosts": "edge.*", "cpu": "20%"},
        {"at": "12s", "for": "3s", "hosts": "edge.*", "cpu": "10%"},
    )
    assert _overlay_after(changes, until_s).share(_EDGES[0]) == share


def test_link_events_merge_over_the_base_and_over_each_other() -> None:
    changes = _expand(
        {"at": "1s", "for": "10s", "src": "edge.*", "dst": "cloud.*", "rate": "5mbit"},
        {"at": "2s", "for": "2s", "src": "edge.*", "dst": "cloud.*", "delay": "1ms", "loss": "3%"},
    )
    during = _overlay_after(changes, 2).constraint(_UP[0])
    assert during == Constraint(delay_ms=1.0, jitter_ms=1.0, rate_mbps=5.0, loss_percent=3.0)
    assert _overlay_after(changes, 4).constraint(_UP[0]) == Constraint(10.0, 2.0, 5.0, 0.0)
    assert _overlay_after(changes, 11).constraint(_UP[0]) == Constraint(10.0, 2.0, 100.0, 0.0)


def test_back_to_back_events_hand_over_without_the_base_in_between() -> None:
    changes = _expand(
        {"at": "10s", "for": "10s", "hosts": "edge.*", "cpu": "20%"},
        {"at": "20s", "for": "10s", "hosts": "edge.*", "cpu": "10%"},
    )
    assert [(c.at_s, c.kind) for c in changes] == [
        (10, "begin"),
        (20, "end"),
        (20, "begin"),
        (30, "end"),
    ]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 50), st.integers(1, 99)),
        min_size=1,
        max_size=8,
    ),
    st.integers(0, 101),
)
def test_what_is_in_effect_is_what_the_events_say(
    events: list[tuple[int, int, int]], now_s: int
) -> None:
    changes = _expand(
        *(
            {"at": f"{at}s", "for": f"{lasts}s", "hosts": "edge.*", "cpu": f"{cpu}%"}
            for at, lasts, cpu in events
        )
    )
    active = [
        (at, i, cpu / 100) for i, (at, lasts, cpu) in enumerate(events) if at <= now_s < at + lasts
    ]
    expected = max(active)[2] if active else 0.5
    assert _overlay_after(changes, now_s).share(_EDGES[0]) == expected
