"""Whether Grid'5000's usage policy allows a reservation.

Source: https://www.grid5000.fr/w/Grid5000:UsagePolicy, "Rules for the default queue". On working
days (Monday to Friday without France's public holidays), 9:00 to 19:00 in Paris is for small
experiments:

- nobody uses more than the equivalent of two hours on all cores of a cluster within one such day;
  jobs of at most one hour that are submitted less than ten minutes before they start are not
  counted;
- no job crosses 9:00 or 19:00 of a working day, except 19:00 where it was submitted at 17:00 or
  later on that day.

Nights, week-ends and holidays are free, so the longest job is 62 hours on a common week-end. The
production queue has no such day: there each node has a longest walltime (`max_walltime` in the
testbed's reference repository).

What is not modelled is listed in `NOT_MODELLED`; `usagepolicycheck -t`, on a frontend of the
testbed, has the last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Literal
from zoneinfo import ZoneInfo

from laggard.core.run_schema import Record

ZONE = "Europe/Paris"
DAY_BEGINS, DAY_ENDS = time(9), time(19)
LATE = time(17)
"""A job submitted from this hour on may run into the night."""

QUOTA_HOURS = 2.0
UNCOUNTED = timedelta(hours=1)
AT_ONCE = timedelta(minutes=10)
DATE = "%Y-%m-%d %H:%M:%S"
HORIZON_DAYS = 14

NOT_MODELLED = (
    "what your other jobs use on the same day",
    "how many reservations you already have in advance",
    "who may use the production queue, and with which priority",
    "exceptions that the executive committee granted you",
    "holidays of Belgium and Luxembourg",
)

Queue = Literal["default", "production", "besteffort", "testing"]


@dataclass(frozen=True)
class ClusterUse:
    """What a reservation takes of one cluster.

    Attributes:
        cluster: its name.
        nodes: taken.
        of_nodes: that it has.
        longest_s: longest walltime that so many of its nodes accept; infinite where nothing limits
            it.
    """

    cluster: str
    nodes: int
    of_nodes: int
    longest_s: float = float("inf")


class UsageFinding(Record):
    """What one rule says of a reservation: the value, the rule, and what would keep it (empty where
    it is kept).
    """

    ok: bool
    value: str
    rule: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.value}: {self.rule}" + (f" — {self.fix}" if self.fix else "")


def check_usage(
    uses: Sequence[ClusterUse],
    queue: Queue,
    walltime_s: float,
    submitted: datetime,
    start: datetime | None = None,
) -> tuple[UsageFinding, ...]:
    """Hold a reservation against the usage policy.

    Args:
        uses: what it takes, one entry per cluster.
        queue: in which it is made.
        walltime_s: its length in seconds.
        submitted: when it is made, with a time zone.
        start: when it begins, with a time zone; at once when absent.

    Returns:
        One finding per rule and cluster that matters; at least one. All are `ok` where the policy
        allows it.
    """
    zone = ZoneInfo(ZONE)
    made, begins = submitted.astimezone(zone), (start or submitted).astimezone(zone)
    length = timedelta(seconds=walltime_s)
    if begins < made:
        value = f"a reservation for {begins.strftime(DATE)}"
        rule = f"that time has passed: it is {made.strftime(DATE)} in Paris"
        return (
            UsageFinding(
                ok=False,
                value=value,
                rule=rule,
                fix="choose a later one, or leave --reservation out",
            ),
        )
    if queue == "production":
        return tuple(_check_production_queue(uses, walltime_s))
    if queue != "default":
        rule = "no rule of day and night" + (
            "; any other job may end yours" if queue == "besteffort" else ""
        )
        return (UsageFinding(ok=True, value=f"the {queue} queue", rule=rule),)
    return tuple(_default_queue(uses, length, made, begins))


def working_days(first: date, last: date) -> Iterator[date]:
    """Mondays to Fridays from `first` to `last`, both included, without France's public
    holidays.
    """
    day = first
    while day <= last:
        if day.weekday() < 5 and day not in public_holidays(day.year):
            yield day
        day += timedelta(days=1)


def public_holidays(year: int) -> frozenset[date]:
    """France's public holidays (article L3133-1 of its labour code)."""
    easter = easter_sunday(year)
    fixed = ((1, 1), (5, 1), (5, 8), (7, 14), (8, 15), (11, 1), (11, 11), (12, 25))
    moving = (
        easter + timedelta(days=days) for days in (1, 39, 50)
    )  # Easter Monday, Ascension, Whit Monday
    return frozenset((*(date(year, month, day) for month, day in fixed), *moving))


def easter_sunday(year: int) -> date:
    """Easter in the Gregorian calendar, by the anonymous algorithm (Nature, 20 April 1876)."""
    golden, (century, of_century) = year % 19, divmod(year, 100)
    leaps, rest = divmod(century, 4)
    moon = (19 * golden + century - leaps - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    quarter, odd = divmod(of_century, 4)
    weekday = (32 + 2 * rest + 2 * quarter - moon - odd) % 7
    late = (golden + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * late + 114, 31)
    return date(year, month, day + 1)


def next_free_start(length: timedelta, after: datetime) -> datetime | None:
    """The next moment from which a job of this length keeps clear of every working day; None within
    `HORIZON_DAYS`.
    """
    zone = ZoneInfo(ZONE)
    now = after.astimezone(zone)
    evenings = (
        _to_datetime(now.date() + timedelta(days=days), DAY_ENDS, zone)
        for days in range(HORIZON_DAYS)
    )
    for begins in (now, *(evening for evening in evenings if evening >= now)):
        if not _day_hours(begins, _compute_end(begins, length)):
            return begins
    return None


def _default_queue(
    uses: Sequence[ClusterUse], length: timedelta, made: datetime, begins: datetime
) -> Iterator[UsageFinding]:
    ends = _compute_end(begins, length)
    hours = _day_hours(begins, ends)
    when = f"{_format_hours(length)} from {begins.strftime('%a %d %b %H:%M')}"
    if not hours:
        yield UsageFinding(
            ok=True, value=when, rule="outside working days' 9:00 to 19:00, which is free"
        )
        return
    elsewhen = _for_the_night(length, begins)
    crossed = _find_crossed_boundary(begins, ends, made)
    if crossed is not None:
        rule = f"no job crosses {crossed.strftime('%H:%M on %A')}, a working day"
        until = crossed - begins
        fix = f"--walltime {format_walltime(until.total_seconds())}, or {elsewhen}"
        yield UsageFinding(ok=False, value=when, rule=rule, fix=fix)
    else:
        yield UsageFinding(
            ok=True, value=when, rule="crosses no 9:00 or 19:00 of a working day that it may not"
        )
    if length <= UNCOUNTED and begins - made < AT_ONCE:
        rule = (
            "at most one hour and submitted just before it starts, so the day's quota does not"
            " count it"
        )
        yield UsageFinding(ok=True, value=when, rule=rule)
        return
    for use in uses:
        yield _check_quota(use, max(hours), elsewhen)


def _check_quota(use: ClusterUse, hours: float, elsewhen: str) -> UsageFinding:
    # Its nodes are alike, so hours on all cores are hours on all nodes.
    allowed = QUOTA_HOURS * use.of_nodes
    used = hours * use.nodes
    rule = (
        f"a working day's quota is {QUOTA_HOURS:g} h of the whole cluster, {allowed:g} node-hours"
    )
    value = f"{used:g} node-hours of {use.cluster} by day"
    if used <= allowed:
        return UsageFinding(ok=True, value=value, rule=rule)
    shorter = format_walltime(int(3600 * allowed / use.nodes))
    return UsageFinding(
        ok=False, value=value, rule=rule, fix=f"--walltime {shorter} or fewer nodes, or {elsewhen}"
    )


def _check_production_queue(
    uses: Sequence[ClusterUse], walltime_s: float
) -> Iterator[UsageFinding]:
    for use in uses:
        value = f"{_format_hours(timedelta(seconds=walltime_s))} on {use.nodes} of {use.cluster}"
        if walltime_s <= use.longest_s:
            yield UsageFinding(
                ok=True,
                value=value,
                rule="within the production queue's longest walltime of these nodes",
            )
            continue
        if use.longest_s == 0:
            yield UsageFinding(
                ok=False, value=value, rule="it has not so many nodes", fix="take fewer"
            )
            continue
        rule = (
            f"so many of its nodes accept at most {use.longest_s / 3600:g} h in the production"
            " queue"
        )
        yield UsageFinding(
            ok=False,
            value=value,
            rule=rule,
            fix=f"--walltime {format_walltime(use.longest_s)}, or fewer nodes",
        )


def _find_crossed_boundary(begins: datetime, ends: datetime, made: datetime) -> datetime | None:
    """The first 9:00 or 19:00 of a working day that a job may not cross and does."""
    for day in working_days(begins.date(), ends.date()):
        for hour in (DAY_BEGINS, DAY_ENDS):
            boundary = _to_datetime(day, hour, begins.tzinfo)
            late = hour == DAY_ENDS and made.date() == day and made.time() >= LATE
            if begins < boundary < ends and not late:
                return boundary
    return None


def _day_hours(begins: datetime, ends: datetime) -> tuple[float, ...]:
    """Hours of each working day's 9:00 to 19:00 that a job takes, where it takes any."""
    taken = []
    for day in working_days(begins.date(), ends.date()):
        first = max(begins, _to_datetime(day, DAY_BEGINS, begins.tzinfo))
        last = min(ends, _to_datetime(day, DAY_ENDS, begins.tzinfo))
        if last > first:
            taken.append((last.timestamp() - first.timestamp()) / 3600)
    return tuple(taken)


def _for_the_night(length: timedelta, after: datetime) -> str:
    free = next_free_start(length, after)
    if free is None:
        return "run it in parts: no night or week-end of the next two weeks is that long"
    kind = "night" if length <= timedelta(hours=14) else "week-end"
    return f"for the {kind} --reservation '{free.strftime(DATE)}'"


def _to_datetime(day: date, hour: time, zone: tzinfo | None) -> datetime:
    return datetime.combine(day, hour, tzinfo=zone)


def _compute_end(begins: datetime, length: timedelta) -> datetime:
    # Through the epoch: hours of walltime are real ones, also in the night that the clocks change.
    return datetime.fromtimestamp(begins.timestamp() + length.total_seconds(), begins.tzinfo)


def _format_hours(length: timedelta) -> str:
    return f"{length.total_seconds() / 3600:.3g} h"


def format_walltime(seconds: float) -> str:
    """Seconds as a walltime, `HH:MM:SS`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"
