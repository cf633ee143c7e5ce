"""Sentences for alarms; alarms of one kind and tier that are raised together share a sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laggard.analysis.detection.families import FAMILIES
from laggard.core.run_schema import Alarm
from laggard.core.text.text_format import (
    capitalize_sentence,
    format_list,
    format_ratio,
    format_seconds,
)

_MOST_NAMES = 4


def format_alarms(
    alarms: Sequence[Alarm], known: frozenset[int], tiers: Mapping[str, str]
) -> tuple[str, ...]:
    """Return sentences for alarms that were just raised or changed.

    Args:
        alarms: alarms as the detector returned them.
        known: numbers of the alarms that were reported before.
        tiers: tier of every host.
    """
    groups: dict[tuple[object, ...], list[Alarm]] = {}
    for alarm in alarms:
        stage = (
            "over"
            if alarm.last_step is not None
            else "named"
            if alarm.number in known
            else "raised"
        )
        tier = tiers.get(alarm.host or "", "") if alarm.host is not None else alarm.number
        groups.setdefault((stage, alarm.family, alarm.kind, tier), []).append(alarm)
    return tuple(
        capitalize_sentence(_FORMATTERS[str(stage)](group)) for (stage, *_), group in groups.items()
    )


def _format_raised(alarms: Sequence[Alarm]) -> str:
    first = alarms[0]
    if first.host is None:
        return _format_raised_link(first)
    slow = f"{_format_hosts(alarms)} {_format_verb(alarms)} {_format_ratios(alarms)} slower than"
    if first.kind == "deterministic":
        return f"{slow} the fastest hosts, since the beginning"
    return f"{slow} usual, since {_format_since(first)}"


def _format_raised_link(alarm: Alarm) -> str:
    if alarm.kind == "deterministic":
        link = "a link" if alarm.link is None else f"the link {_format_link(alarm)}"
        return (
            f"{link} is {format_ratio(alarm.slowdown)} slower than the fastest links, since the"
            " beginning"
        )
    link = "" if alarm.link is None else f"; the link {_format_link(alarm)} holds them up"
    return (
        f"transfers take {format_ratio(alarm.slowdown)} as long as usual, since"
        f" {_format_since(alarm)}{link}"
    )


def _format_named(alarms: Sequence[Alarm]) -> str:
    return (
        f"the transfers that have been slow since {_format_since(alarms[0])} are delayed by the"
        f" link {_format_link(alarms[0])}"
    )


def _format_ended(alarms: Sequence[Alarm]) -> str:
    first = alarms[0]
    end_s, took_s = first.ended_s or 0.0, (first.ended_s or 0.0) - first.since_s
    lasted = f"as usual again since {format_seconds(end_s)} (slow for {format_seconds(took_s)})"
    if first.host is None:
        what = "transfers are" if first.kind == "dynamic" else f"the link {_format_link(first)} is"
        return f"{what} {lasted}"
    if first.kind == "deterministic":
        return (
            f"{_format_hosts(alarms)} {_format_verb(alarms)} as fast as the fastest hosts since"
            f" {format_seconds(end_s)}"
        )
    return f"{_format_hosts(alarms)} {_format_verb(alarms)} {lasted}"


_FORMATTERS = {"raised": _format_raised, "named": _format_named, "over": _format_ended}


def _format_hosts(alarms: Sequence[Alarm]) -> str:
    hosts = list(dict.fromkeys(str(alarm.host) for alarm in alarms))
    if len(hosts) > _MOST_NAMES:
        hosts = [*hosts[: _MOST_NAMES - 1], f"{len(hosts) - _MOST_NAMES + 1} more"]
    return format_list(hosts)


def _format_verb(alarms: Sequence[Alarm]) -> str:
    one, several = FAMILIES[alarms[0].family].alarm_verbs
    return one if len({alarm.host for alarm in alarms}) == 1 else several


def _format_ratios(alarms: Sequence[Alarm]) -> str:
    ends = sorted(
        {
            format_ratio(min(a.slowdown for a in alarms)),
            format_ratio(max(a.slowdown for a in alarms)),
        }
    )
    return " to ".join(sorted(ends, key=lambda text: float(text.rstrip("x"))))


def _format_since(alarm: Alarm) -> str:
    return f"step {alarm.since_step} ({format_seconds(alarm.since_s)})"


def _format_link(alarm: Alarm) -> str:
    return " → ".join(alarm.link or ())
