from __future__ import annotations

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.layers_services.g5k.usage_rules import (
    DAY_BEGINS,
    DAY_ENDS,
    ClusterUse,
    check_usage,
    easter_sunday,
    format_walltime,
    next_free_start,
    public_holidays,
    working_days,
)

steady = settings(derandomize=True, deadline=None)
PARIS = ZoneInfo("Europe/Paris")
HOUR = 3600
# 2026-11-23 is a Monday.
MONDAY, FRIDAY, SATURDAY = 23, 27, 28
moments = st.integers(0, 3 * 365 * 24 * 60).map(
    lambda minutes: datetime.fromtimestamp(
        datetime(2026, 1, 1, tzinfo=PARIS).timestamp() + 60 * minutes, PARIS
    )
)
lengths = st.integers(1, 100 * 60).map(lambda minutes: timedelta(minutes=minutes))


def at(day: int, hour: int, minute: int = 0) -> datetime:
    return datetime(2026, 11, day, hour, minute, tzinfo=PARIS)


@pytest.mark.parametrize(
    ("hours", "submitted", "start", "nodes", "broken"),
    [
        (1, at(MONDAY, 10), None, 10, []),
        (2, at(MONDAY, 10), None, 10, []),
        (2, at(MONDAY, 10), None, 1, []),
        (
            3,
            at(MONDAY, 10),
            None,
            10,
            ["the quota per working day is 2 h of the whole cluster, 20 node-hours"],
        ),
        (4, at(MONDAY, 10), None, 5, []),
        (9, at(MONDAY, 9), None, 2, []),
        (10, at(MONDAY, 9), None, 2, []),
        (11, at(MONDAY, 9), None, 1, ["no job may cross 19:00 on Monday, a working day"]),
        (2, at(MONDAY, 16, 59), None, 1, []),
        (3, at(MONDAY, 16, 59), None, 1, ["no job may cross 19:00 on Monday, a working day"]),
        (3, at(MONDAY, 17), None, 10, []),
        (16, at(MONDAY, 17), None, 1, []),
        (17, at(MONDAY, 17), None, 1, ["no job may cross 09:00 on Tuesday, a working day"]),
        (14, at(MONDAY, 19), None, 10, []),
        (15, at(MONDAY, 19), None, 1, ["no job may cross 09:00 on Tuesday, a working day"]),
        (62, at(FRIDAY, 19), None, 10, []),
        (63, at(FRIDAY, 19), None, 1, ["no job may cross 09:00 on Monday, a working day"]),
        (40, at(SATURDAY, 12), None, 10, []),
        (14, at(MONDAY, 10), at(MONDAY, 19), 10, []),
        (1, at(MONDAY, 8), at(MONDAY, 10), 10, []),
        (1, at(MONDAY, 9, 30), at(MONDAY, 10), 10, []),
        (
            1,
            at(MONDAY, 10),
            at(MONDAY, 9),
            10,
            ["this time is in the past: it is 2026-11-23 10:00:00 in Paris"],
        ),
    ],
)
def test_the_default_queue(
    hours: float, submitted: datetime, start: datetime | None, nodes: int, broken: list[str]
) -> None:
    found = check_usage([ClusterUse("gros", nodes, 10)], "default", hours * HOUR, submitted, start)
    assert found
    assert [finding.rule for finding in found if not finding.ok] == broken
    assert all(finding.fix for finding in found if not finding.ok)


def test_an_hour_reserved_ahead_counts_into_the_quota() -> None:
    busy = [ClusterUse("gemini", 2, 2), ClusterUse("gros", 1, 10)]
    rules = {
        hours: check_usage(busy, "default", hours * HOUR, at(MONDAY, 9), at(MONDAY, 12))
        for hours in (1, 3)
    }
    assert [finding.ok for finding in rules[1]] == [True, True, True]
    assert [finding.ok for finding in rules[3]] == [True, False, True]
    assert "6 node-hours of gemini in daytime" in str(rules[3][1])
    assert (
        "--walltime 02:00:00 or fewer nodes, or for the night --reservation '2026-11-23 19:00:00'"
        in rules[3][1].fix
    )


def test_a_fix_is_a_walltime_that_fits_or_the_next_night_that_does() -> None:
    crossing = check_usage([], "default", 20 * HOUR, at(MONDAY, 10))
    assert (
        crossing[0].fix
        == "--walltime 09:00:00, or for the weekend --reservation '2026-11-27 19:00:00'"
    )
    endless = check_usage([], "default", 80 * HOUR, at(MONDAY, 10))
    assert endless[0].fix.endswith(
        "run it in parts: no night or weekend of the next two weeks is long enough"
    )


def test_a_holiday_is_no_working_day() -> None:
    armistice = datetime(2026, 11, 11, 10, tzinfo=PARIS)  # a Wednesday
    assert all(
        finding.ok
        for finding in check_usage([ClusterUse("gros", 10, 10)], "default", 20 * HOUR, armistice)
    )


def test_times_are_those_of_paris() -> None:
    utc = datetime(2026, 11, 23, 18, 30, tzinfo=ZoneInfo("UTC"))
    assert [
        finding.ok
        for finding in check_usage([ClusterUse("gros", 10, 10)], "default", 13 * HOUR, utc)
    ] == [True]


@pytest.mark.parametrize(
    ("queue", "walltime_h", "longest_h", "ok", "said"),
    [
        ("production", 48, float("inf"), True, "within the longest walltime of these nodes"),
        ("production", 48, 48, True, "within the longest walltime of these nodes"),
        ("production", 49, 48, False, "--walltime 48:00:00"),
        ("production", 1, 0, False, "the cluster has fewer nodes"),
        ("besteffort", 100, 1, True, "any other job may end yours"),
        ("testing", 100, 1, True, "no daytime rule applies"),
    ],
)
def test_other_queues(queue: str, walltime_h: float, longest_h: float, ok: bool, said: str) -> None:
    use = ClusterUse("graffiti", 8, 12, longest_h * HOUR)
    (finding,) = check_usage([use], queue, walltime_h * HOUR, at(MONDAY, 10))  # type: ignore[arg-type]
    assert finding.ok is ok
    assert said in str(finding)


@pytest.mark.parametrize(
    ("year", "month", "day"),
    [
        (1961, 4, 2),
        (2000, 4, 23),
        (2008, 3, 23),
        (2011, 4, 24),
        (2024, 3, 31),
        (2025, 4, 20),
        (2026, 4, 5),
        (2038, 4, 25),
    ],
)
def test_easter(year: int, month: int, day: int) -> None:
    assert easter_sunday(year) == date(year, month, day)


def test_public_holidays_of_a_year() -> None:
    expected = [
        "01-01",
        "04-06",
        "05-01",
        "05-08",
        "05-14",
        "05-25",
        "07-14",
        "08-15",
        "11-01",
        "11-11",
        "12-25",
    ]
    assert [day.strftime("%m-%d") for day in sorted(public_holidays(2026))] == expected
    first, last = date(2026, 5, 11), date(2026, 5, 17)
    assert [day.day for day in working_days(first, last)] == [11, 12, 13, 15]


@steady
@given(begins=moments, length=lengths)
def test_a_job_is_free_exactly_where_it_touches_no_working_day(
    begins: datetime, length: timedelta
) -> None:
    ends = datetime.fromtimestamp(begins.timestamp() + length.total_seconds(), PARIS)
    minutes = [begins.timestamp() + 60 * n for n in range(int(length.total_seconds() // 60))]
    local = [datetime.fromtimestamp(minute, PARIS) for minute in minutes]
    days = set(working_days(begins.date(), ends.date()))
    by_day = any(
        moment.date() in days and DAY_BEGINS <= moment.time() < DAY_ENDS for moment in local
    )
    findings = check_usage([ClusterUse("gros", 10, 10)], "default", length.total_seconds(), begins)
    assert findings[0].rule.startswith("outside 9:00 to 19:00") is not by_day


@steady
@given(after=moments, hours=st.integers(1, 62))
def test_the_next_free_start_is_free(after: datetime, hours: int) -> None:
    length = timedelta(hours=hours)
    start = next_free_start(length, after)
    assert start is not None
    assert start >= after
    assert all(
        f.ok
        for f in check_usage(
            [ClusterUse("gros", 10, 10)], "default", length.total_seconds(), after, start
        )
    )


@given(st.integers(0, 10_000_000))
def test_clock(seconds: int) -> None:
    hours, minutes, rest = (int(part) for part in format_walltime(seconds).split(":"))
    assert 3600 * hours + 60 * minutes + rest == seconds
