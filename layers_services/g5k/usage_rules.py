"""Checks of a reservation against Grid'5000's usage policy.

Source: https://www.grid5000.fr/w/Grid5000:UsagePolicy, "Rules for the default queue". Working days
are Monday to Friday except France's public holidays. On working days, 9:00 to 19:00 in Paris is
reserved for small experiments:

- A user may use at most the equivalent of two hours on all cores of a cluster within one such day.
  Jobs of at most one hour that are submitted less than ten minutes before they start do not count.
- A job may not cross 9:00 or 19:00 of a working day. It may cross 19:00 if it was submitted at
  17:00 or later on that day.

Nights, weekends and holidays are free, so the longest job is 62 hours on an ordinary weekend. The
production queue has no daytime rule. There each node has a longest walltime (`max_walltime` in the
testbed's reference repository).

`NOT_MODELLED` lists the rules that are not checked. `usagepolicycheck -t` on a frontend of the
testbed is authoritative.
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
"""Hour from which a submitted job may run into the night."""

QUOTA_HOURS = 2.0
UNCOUNTED = timedelta(hours=1)
AT_ONCE = timedelta(minutes=10)
DATE = "%Y-%m-%d %H:%M:%S"
HORIZON_DAYS = 14

NOT_MODELLED = (
    "usage by your other jobs on the same day",
    "number of your advance reservations",
    "access to the production queue and its priorities",
    "exceptions granted to you by the executive committee",
    "holidays of Belgium and Luxembourg",
)

Queue = Literal["default", "production", "besteffort", "testing"]


@dataclass(frozen=True)
class ClusterUse:
    """Usage of one cluster by a reservation.

    Attributes:
        cluster: name of the cluster
        nodes: number of requested nodes
        of_nodes: number of nodes of the cluster
        longest_s: longest walltime that this many nodes accept; infinite without a limit
    """

    cluster: str
    nodes: int
    of_nodes: int
    longest_s: float = float("inf")


class UsageFinding(Record):
    """Result of one rule for a reservation: the value, the rule and the fix.

    The fix is empty if the reservation respects the rule.
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
    """Check a reservation against the usage policy.

    Args:
        uses: usage, one entry per cluster
        queue: queue of the reservation
        walltime_s: length in seconds
        submitted: time of the submission, with a time zone
        start: start of the reservation, with a time zone; by default the time of submission

    Returns:
        One finding per applicable rule and cluster, at least one. All of them are `ok` if the
        policy allows the reservation.
    """
    zone = ZoneInfo(ZONE)
    made, begins = submitted.astimezone(zone), (start or submitted).astimezone(zone)
    length = timedelta(seconds=walltime_s)
    if begins < made:
        value = f"a reservation for {begins.strftime(DATE)}"
        rule = f"this time is in the past: it is {made.strftime(DATE)} in Paris"
        return (
            UsageFinding(
                ok=False,
                value=value,
                rule=rule,
                fix="choose a later time, or omit --reservation",
            ),
        )
    if queue == "production":
        return tuple(_check_production_queue(uses, walltime_s))
    if queue != "default":
        rule = "no daytime rule applies" + (
            "; any other job may end yours" if queue == "besteffort" else ""
        )
        return (UsageFinding(ok=True, value=f"the {queue} queue", rule=rule),)
    return tuple(_default_queue(uses, length, made, begins))


def working_days(first: date, last: date) -> Iterator[date]:
    """Yield the working days from `first` to `last` inclusive.

    Weekends and France's public holidays are omitted.
    """
    day = first
    while day <= last:
        if day.weekday() < 5 and day not in public_holidays(day.year):
            yield day
        day += timedelta(days=1)


def public_holidays(year: int) -> frozenset[date]:
    """Return France's public holidays (article L3133-1 of its labor code)."""
    easter = easter_sunday(year)
    fixed = ((1, 1), (5, 1), (5, 8), (7, 14), (8, 15), (11, 1), (11, 11), (12, 25))
    moving = (
        easter + timedelta(days=days) for days in (1, 39, 50)
    )  # Easter Monday, Ascension, Whit Monday
    return frozenset((*(date(year, month, day) for month, day in fixed), *moving))


def easter_sunday(year: int) -> date:
    """Return Easter Sunday by the anonymous Gregorian algorithm (Nature, 20 April 1876)."""
    golden, (century, of_century) = year % 19, divmod(year, 100)
    leaps, rest = divmod(century, 4)
    moon = (19 * golden + century - leaps - (century - (century + 8) // 25 + 1) // 3 + 15) % 30
    quarter, odd = divmod(of_century, 4)
    weekday = (32 + 2 * rest + 2 * quarter - moon - odd) % 7
    late = (golden + 11 * moon + 22 * weekday) // 451
    month, day = divmod(moon + weekday - 7 * late + 114, 31)
    return date(year, month, day + 1)


def next_free_start(length: timedelta, after: datetime) -> datetime | None:
    """Return the next start from which a job of this length avoids every working day.

    None means that there is no such start within `HORIZON_DAYS`.
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
            ok=True, value=when, rule="outside 9:00 to 19:00 of working days, without limits"
        )
        return
    elsewhen = _for_the_night(length, begins)
    crossed = _find_crossed_boundary(begins, ends, made)
    if crossed is not None:
        rule = f"no job may cross {crossed.strftime('%H:%M on %A')}, a working day"
        until = crossed - begins
        fix = f"--walltime {format_walltime(until.total_seconds())}, or {elsewhen}"
        yield UsageFinding(ok=False, value=when, rule=rule, fix=fix)
    else:
        yield UsageFinding(
            ok=True, value=when, rule="does not cross a forbidden 9:00 or 19:00 of a working day"
        )
    if length <= UNCOUNTED and begins - made < AT_ONCE:
        rule = (
            "at most one hour and submitted less than ten minutes before its start, so it does not"
            " count in the day's quota"
        )
        yield UsageFinding(ok=True, value=when, rule=rule)
        return
    for use in uses:
        yield _check_quota(use, max(hours), elsewhen)


def _check_quota(use: ClusterUse, hours: float, elsewhen: str) -> UsageFinding:
    # The nodes of a cluster are alike, so the quota of core-hours can be counted in node-hours.
    allowed = QUOTA_HOURS * use.of_nodes
    used = hours * use.nodes
    rule = (
        f"the quota per working day is {QUOTA_HOURS:g} h of the whole cluster, {allowed:g}"
        " node-hours"
    )
    value = f"{used:g} node-hours of {use.cluster} in daytime"
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
        value = (
            f"{_format_hours(timedelta(seconds=walltime_s))} on {use.nodes} nodes of {use.cluster}"
        )
        if walltime_s <= use.longest_s:
            yield UsageFinding(
                ok=True,
                value=value,
                rule="within the longest walltime of these nodes in the production queue",
            )
            continue
        if use.longest_s == 0:
            yield UsageFinding(
                ok=False, value=value, rule="the cluster has fewer nodes", fix="use fewer nodes"
            )
            continue
        rule = f"this many nodes accept at most {use.longest_s / 3600:g} h in the production queue"
        yield UsageFinding(
            ok=False,
            value=value,
            rule=rule,
            fix=f"--walltime {format_walltime(use.longest_s)}, or fewer nodes",
        )


def _find_crossed_boundary(begins: datetime, ends: datetime, made: datetime) -> datetime | None:
    """Return the first 9:00 or 19:00 of a working day that a job crosses without permission."""
    for day in working_days(begins.date(), ends.date()):
        for hour in (DAY_BEGINS, DAY_ENDS):
            boundary = _to_datetime(day, hour, begins.tzinfo)
            late = hour == DAY_ENDS and made.date() == day and made.time() >= LATE
            if begins < boundary < ends and not late:
                return boundary
    return None


def _day_hours(begins: datetime, ends: datetime) -> tuple[float, ...]:
    """Return the hours of each working day's 9:00 to 19:00 that a job uses, without zeros."""
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
        return "run it in parts: no night or weekend of the next two weeks is long enough"
    # A night has 14 hours, from 19:00 to 9:00.
    kind = "night" if length <= timedelta(hours=14) else "weekend"
    return f"for the {kind} --reservation '{free.strftime(DATE)}'"


def _to_datetime(day: date, hour: time, zone: tzinfo | None) -> datetime:
    return datetime.combine(day, hour, tzinfo=zone)


def _compute_end(begins: datetime, length: timedelta) -> datetime:
    # Computed in Unix time, since a walltime counts elapsed hours, also when the clocks change.
    return datetime.fromtimestamp(begins.timestamp() + length.total_seconds(), begins.tzinfo)


def _format_hours(length: timedelta) -> str:
    return f"{length.total_seconds() / 3600:.3g} h"


def format_walltime(seconds: float) -> str:
    """Format seconds as a walltime, `HH:MM:SS`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest:02d}"
