"""What is told of alarms, word for word."""

from __future__ import annotations

import pytest

from laggard.analysis.detection.online.alarm_text import format_alarms
from laggard.core.run_schema import Alarm

TIERS = {"edge.trainer.1.1": "edge", "edge.trainer.1.2": "edge", "fog.trainer.1.1": "fog"}


def alarm(number: int = 0, host: str | None = "edge.trainer.1.1", **changes: object) -> Alarm:
    values: dict[str, object] = {
        "number": number, "rank": None if host is None else number, "host": host, "link": None, "family": "compute",
        "kind": "dynamic", "slowdown": 2.0, "confidence": 1.0, "since_step": 112, "since_s": 31.4,
        "raised_step": 118, "raised_s": 34.0,
    }  # fmt: skip
    return Alarm.model_validate(values | changes)


LINK = ("edge.trainer.1.1", "cloud.trainer.1.1")


@pytest.mark.parametrize(
    ("alarms", "known", "expected"),
    [
        ([alarm()], (), ["edge.trainer.1.1 computes 2.0x slower than usual, since step 112 (31 s)"]),
        ([alarm(family="storage", slowdown=3.0)], (), ["edge.trainer.1.1 reads its data 3.0x slower than usual, since step 112 (31 s)"]),
        (
            [alarm(0, kind="deterministic"), alarm(1, "edge.trainer.1.2", kind="deterministic", slowdown=4.0)],
            (),
            ["edge.trainer.1.1 and edge.trainer.1.2 compute 2.0x to 4.0x slower than the fastest hosts, since the beginning"],
        ),
        (
            [alarm(), alarm(1, "fog.trainer.1.1", slowdown=3.0)],
            (),
            [
                "edge.trainer.1.1 computes 2.0x slower than usual, since step 112 (31 s)",
                "fog.trainer.1.1 computes 3.0x slower than usual, since step 112 (31 s)",
            ],
        ),
        (
            [alarm(host=None, family="network")],
            (),
            ["Transfers take 2.0x as long as usual, since step 112 (31 s)"],
        ),
        (
            [alarm(host=None, family="network", link=LINK)],
            (),
            ["Transfers take 2.0x as long as usual, since step 112 (31 s); the link edge.trainer.1.1 → cloud.trainer.1.1 holds them up"],
        ),
        (
            [alarm(host=None, family="network", link=LINK)],
            (0,),
            ["The transfers that have been slow since step 112 (31 s) are delayed by the link edge.trainer.1.1 → cloud.trainer.1.1"],
        ),
        (
            [alarm(family="network"), alarm(1, "edge.trainer.1.2", family="network")],
            (),
            ["edge.trainer.1.1 and edge.trainer.1.2 transfer 2.0x slower than usual, since step 112 (31 s)"],
        ),
        (
            [alarm(last_step=140, ended_s=50.2)],
            (0,),
            ["edge.trainer.1.1 computes as usual again since 50 s (slow for 19 s)"],
        ),
        (
            [alarm(host=None, family="network", last_step=140, ended_s=50.2)],
            (0,),
            ["Transfers are as usual again since 50 s (slow for 19 s)"],
        ),
        ([], (), []),
    ],
)  # fmt: skip
def test_told(alarms: list[Alarm], known: tuple[int, ...], expected: list[str]) -> None:
    assert list(format_alarms(alarms, frozenset(known), TIERS)) == expected


def test_of_many_hosts_some_are_named() -> None:
    alarms = [
        alarm(number, f"edge.trainer.1.{number}", kind="deterministic") for number in range(1, 31)
    ]
    (text,) = format_alarms(
        alarms, frozenset(), {each.host: "edge" for each in alarms if each.host}
    )
    assert text.startswith(
        "edge.trainer.1.1, edge.trainer.1.2, edge.trainer.1.3 and 27 more compute 2.0x slower"
    )
