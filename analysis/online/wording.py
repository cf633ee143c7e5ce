"""What the detector tells, as sentences: alarms of one kind and tier that come together are one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laggard.analysis.wording import listed, ratio_text, seconds_text, sentence
from laggard.run_schema import Alarm, Family

_MOST_NAMES = 4
_DOES: dict[Family, tuple[str, str]] = {
    "compute": ("computes", "compute"),
    "storage": ("reads its data", "read their data"),
    "network": ("transfers", "transfer"),
}


def told(
    alarms: Sequence[Alarm], known: frozenset[int], tiers: Mapping[str, str]
) -> tuple[str, ...]:
    """Sentences for what was just found.

    Args:
        alarms: as the detector gave them.
        known: numbers of the alarms that were told of before.
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
    return tuple(sentence(_TOLD[str(stage)](group)) for (stage, *_), group in groups.items())


def _raised(alarms: Sequence[Alarm]) -> str:
    first = alarms[0]
    if first.host is None:
        return _raised_link(first)
    slow = f"{_who(alarms)} {_does(alarms)} {_ratios(alarms)} slower than"
    if first.kind == "deterministic":
        return f"{slow} the fastest hosts, since the beginning"
    return f"{slow} usual, since {_since(first)}"


def _raised_link(alarm: Alarm) -> str:
    if alarm.kind == "deterministic":
        link = "a link" if alarm.link is None else f"the link {_link(alarm)}"
        return (
            f"{link} is {ratio_text(alarm.slowdown)} slower than the fastest links, since the"
            " beginning"
        )
    link = "" if alarm.link is None else f"; the link {_link(alarm)} holds them up"
    return (
        f"transfers take {ratio_text(alarm.slowdown)} as long as usual, since {_since(alarm)}{link}"
    )


def _named(alarms: Sequence[Alarm]) -> str:
    return f"what holds up the transfers since {_since(alarms[0])} is the link {_link(alarms[0])}"


def _over(alarms: Sequence[Alarm]) -> str:
    first = alarms[0]
    end_s, took_s = first.over_s or 0.0, (first.over_s or 0.0) - first.since_s
    lasted = f"as usual again since {seconds_text(end_s)}, after {seconds_text(took_s)}"
    if first.host is None:
        what = "transfers are" if first.kind == "dynamic" else f"the link {_link(first)} is"
        return f"{what} {lasted}"
    if first.kind == "deterministic":
        return (
            f"{_who(alarms)} {_does(alarms)} as fast as the fastest hosts now, at"
            f" {seconds_text(end_s)}"
        )
    return f"{_who(alarms)} {_does(alarms)} {lasted}"


_TOLD = {"raised": _raised, "named": _named, "over": _over}


def _who(alarms: Sequence[Alarm]) -> str:
    hosts = list(dict.fromkeys(str(alarm.host) for alarm in alarms))
    if len(hosts) > _MOST_NAMES:
        hosts = [*hosts[: _MOST_NAMES - 1], f"{len(hosts) - _MOST_NAMES + 1} more"]
    return listed(hosts)


def _does(alarms: Sequence[Alarm]) -> str:
    one, several = _DOES[alarms[0].family]
    return one if len({alarm.host for alarm in alarms}) == 1 else several


def _ratios(alarms: Sequence[Alarm]) -> str:
    ends = sorted(
        {ratio_text(min(a.slowdown for a in alarms)), ratio_text(max(a.slowdown for a in alarms))}
    )
    return " to ".join(sorted(ends, key=lambda text: float(text.rstrip("x"))))


def _since(alarm: Alarm) -> str:
    return f"step {alarm.since_step} ({seconds_text(alarm.since_s)})"


def _link(alarm: Alarm) -> str:
    return " → ".join(alarm.link or ())
