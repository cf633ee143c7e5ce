"""Changes applied on time, to what is composed of the events under way, and recorded in virtual
time."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields

import pytest

from laggard.core.emulated_drive import DriveLimits
from laggard.core.errors import EmulationError
from laggard.core.span_schema import event_schema
from laggard.core.virtual_time import Dilation
from laggard.network_emulation.dynamics import EventRecord, Scheduler, TimedChange
from laggard.network_emulation.link_plan import Constraint, Pair
from laggard.network_emulation.links.backend import LinkCounters, LinkHealth

_PAIR = ("edge.w.1.1", "cloud.w.1.1")
_BASE = Constraint(delay_ms=10.0, rate_mbps=100.0)
LINKS_TAKE_NS, DRIVES_TAKE_NS = 1_000_000_000_000, 2_000_000_000_000
"""How much later than they were asked links and drives say that a change was in effect: more than
any machine is late."""


class _Links:
    name = "userspace"

    def __init__(self) -> None:
        self.asked: list[Mapping[Pair, Constraint]] = []

    def change(self, changes: Mapping[Pair, Constraint]) -> int:
        self.asked.append(dict(changes))
        return time.monotonic_ns() + LINKS_TAKE_NS

    def counters(self) -> Mapping[Pair, LinkCounters]:
        return {}

    def lateness_ms(self) -> float | None:
        return None

    def health(self) -> LinkHealth:
        return LinkHealth()

    def check_alive(self) -> None:
        return

    def close(self) -> None:
        return


class _Shares:
    def __init__(self, failure: str = "") -> None:
        self.asked: list[tuple[str, float]] = []
        self._failure = failure

    def set_share(self, host: str, share: float) -> int:
        if self._failure:
            raise EmulationError(self._failure)
        self.asked.append((host, share))
        return time.monotonic_ns()


def _scheduler(
    changes: list[TimedChange], links: _Links, shares: _Shares, factor: float = 1.0
) -> Scheduler:
    return Scheduler(changes, links, shares, Dilation(factor), {"edge.w.1.1": 0.5}, {_PAIR: _BASE})


def _wait_for(condition: Sequence[object], scheduler: Scheduler, count: int) -> None:
    deadline = time.monotonic() + 60
    while len(condition) < count and scheduler.failure is None and time.monotonic() < deadline:
        time.sleep(0.005)


def test_changes_are_applied_dilated_and_recorded_in_virtual_time() -> None:
    links, shares = _Links(), _Shares()
    changes = [
        TimedChange(0.05, "begin", 0, ("edge.w.1.1",), (("cpu", 0.2),)),
        TimedChange(0.1, "begin", 1, (_PAIR,), (("rate_mbps", 5.0),)),
        TimedChange(0.15, "end", 0, ("edge.w.1.1",)),
        TimedChange(0.2, "end", 1, (_PAIR,)),
    ]
    scheduler = _scheduler(changes, links, shares, factor=2.0)
    scheduler.start(time.monotonic_ns())
    _wait_for(links.asked, scheduler, 2)
    records = scheduler.stop()
    assert shares.asked == [("edge.w.1.1", 0.1), ("edge.w.1.1", 0.25)]
    assert links.asked == [
        {_PAIR: Constraint(20.0, 0.0, 2.5)},
        {_PAIR: Constraint(20.0, 0.0, 50.0)},
    ]
    assert [(r.kind, r.src, r.dst, r.quantity, r.value, r.requested_s) for r in records] == [
        ("begin", "edge.w.1.1", "", "cpu", 0.2, 0.05),
        ("begin", *_PAIR, "rate_mbps", 5.0, 0.1),
        ("end", "edge.w.1.1", "", "cpu", 0.5, 0.15),
        ("end", *_PAIR, "rate_mbps", 100.0, 0.2),
    ]
    for record in records:
        later_s = LINKS_TAKE_NS / 1e9 / 2.0 if record.dst else 0.0
        assert record.effective_s - later_s >= record.requested_s
        assert record.dst or record.effective_s < LINKS_TAKE_NS / 1e9 / 2.0


class _Drives:
    def __init__(self) -> None:
        self.asked: list[tuple[str, DriveLimits]] = []

    def set_limits(self, host: str, limits: DriveLimits) -> int:
        self.asked.append((host, limits))
        return time.monotonic_ns() + DRIVES_TAKE_NS


def test_a_drive_is_changed_beside_the_share_and_each_recorded_when_it_acted() -> None:
    shares, drives, host = _Shares(), _Drives(), "edge.w.1.1"
    changes = [
        TimedChange(0.01, "begin", 0, (host,), (("cpu", 0.2), ("read_mb_per_s", 4.0))),
        TimedChange(0.03, "begin", 1, (host,), (("read_latency_ms", 2.0),)),
        TimedChange(0.05, "end", 0, (host,)),
    ]
    base = {host: DriveLimits(None, 6.0)}
    scheduler = Scheduler(changes, _Links(), shares, Dilation(2.0), {host: 0.5}, {}, drives, base)
    scheduler.start(time.monotonic_ns())
    _wait_for(drives.asked, scheduler, 3)
    records = scheduler.stop()
    assert shares.asked == [(host, 0.1), (host, 0.25)]
    assert drives.asked == [
        (host, DriveLimits(2.0, 3.0)),
        (host, DriveLimits(2.0, 3.0, 4.0)),
        (host, DriveLimits(None, 3.0, 4.0)),
    ]
    assert [(r.kind, r.quantity, r.value) for r in records[:-1]] == [
        ("begin", "cpu", 0.2),
        ("begin", "read_mb_per_s", 4.0),
        ("begin", "read_latency_ms", 2.0),
        ("end", "cpu", 0.5),
    ]
    assert (records[-1].quantity, math.isnan(records[-1].value)) == ("read_mb_per_s", True)
    assert [r.effective_s >= DRIVES_TAKE_NS / 1e9 / 2.0 for r in records] == [
        r.quantity != "cpu" for r in records
    ]


def test_a_drive_that_nobody_can_change_is_an_error() -> None:
    change = TimedChange(0.0, "begin", 0, ("edge.w.1.1",), (("read_mb_per_s", 4.0),))
    scheduler = _scheduler([change], _Links(), _Shares())
    scheduler.start(time.monotonic_ns())
    deadline = time.monotonic() + 60
    while scheduler.failure is None and time.monotonic() < deadline:
        time.sleep(0.005)
    with pytest.raises(EmulationError, match="the run has no emulated drives"):
        scheduler.stop()


def test_changes_of_one_moment_reach_each_target_once() -> None:
    links, shares = _Links(), _Shares()
    host = ("edge.w.1.1",)
    changes = [
        TimedChange(0.01, "begin", 0, host, (("cpu", 0.2),)),
        TimedChange(0.01, "begin", 1, (_PAIR,), (("delay_ms", 3.0),)),
        TimedChange(0.05, "end", 0, host),
        TimedChange(0.05, "end", 1, (_PAIR,)),
        TimedChange(0.05, "begin", 2, host, (("cpu", 0.1),)),
        TimedChange(0.05, "begin", 3, (_PAIR,), (("delay_ms", 7.0),)),
    ]
    scheduler = _scheduler(changes, links, shares)
    scheduler.start(time.monotonic_ns())
    _wait_for(shares.asked, scheduler, 2)
    scheduler.stop()
    assert shares.asked == [("edge.w.1.1", 0.2), ("edge.w.1.1", 0.1)]
    assert [asked[_PAIR].delay_ms for asked in links.asked] == [3.0, 7.0]


def test_changes_already_due_are_applied_at_once() -> None:
    shares = _Shares()
    scheduler = _scheduler(
        [TimedChange(1.0, "begin", 0, ("edge.w.1.1",), (("cpu", 0.2),))], _Links(), shares
    )
    scheduler.start(time.monotonic_ns() - 5_000_000_000)
    _wait_for(shares.asked, scheduler, 1)
    (record,) = scheduler.stop()
    assert record.requested_s == 1.0
    assert record.effective_s >= 5.0


def test_stopping_applies_nothing_more() -> None:
    shares = _Shares()
    scheduler = _scheduler(
        [TimedChange(1e6, "begin", 0, ("edge.w.1.1",), (("cpu", 0.2),))], _Links(), shares
    )
    scheduler.start(time.monotonic_ns())
    assert scheduler.stop() == ()
    assert shares.asked == []


def test_a_rate_that_nothing_limits_is_recorded_as_not_a_number() -> None:
    links = _Links()
    pair = ("a", "b")
    changes = [
        TimedChange(0.0, "begin", 0, (pair,), (("rate_mbps", 5.0),)),
        TimedChange(0.01, "end", 0, (pair,)),
    ]
    scheduler = _scheduler(changes, links, _Shares())
    scheduler.start(time.monotonic_ns())
    _wait_for(links.asked, scheduler, 2)
    assert math.isnan(scheduler.stop()[1].value)
    assert links.asked[1] == {pair: Constraint()}


def test_a_failure_surfaces_when_it_is_stopped() -> None:
    changes = [TimedChange(0.0, "begin", 0, ("edge.w.1.1",), (("cpu", 0.2),))]
    shares = _Shares(failure="the limiter is gone")
    scheduler = _scheduler(changes, _Links(), shares)
    scheduler.start(time.monotonic_ns())
    _wait_for(shares.asked, scheduler, 1)
    with pytest.raises(
        EmulationError, match="timed event could not be applied: the limiter is gone"
    ):
        scheduler.stop()


def test_records_are_rows_of_the_table() -> None:
    assert [field.name for field in fields(EventRecord)] == event_schema().names
