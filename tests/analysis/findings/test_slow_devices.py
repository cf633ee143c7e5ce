"""Sentences about an inference say who is slow, and for which reason."""

from __future__ import annotations

import pytest

from laggard.analysis.findings.slow_devices import format_slow_devices
from laggard.core.serving.serving_record import DeviceService, LatencyParts, ServingRecord


def device(
    host: str,
    median_s: float = 0.1,
    *,
    parts: tuple[float, float, float, float] = (0.0, 0.1, 0.0, 0.0),
    cuts: dict[int, int] | None = None,
    shed: int = 0,
    hopeless: int = 0,
) -> DeviceService:
    queue_s, computed_s, link_s, server_s = parts
    return DeviceService(
        host=host,
        tier="edge",
        requests=10 + shed,
        shed=shed,
        hopeless=hopeless,
        latency_s={50: median_s, 90: median_s, 99: median_s},
        parts=LatencyParts(
            queue_s=queue_s, computed_s=computed_s, link_s=link_s, server_s=server_s
        ),
        violations=None,
        antt=1.0,
        accuracy=1.0,
        answers=1.0,
        cuts={4: 10} if cuts is None else cuts,
    )


def tell(*devices: DeviceService) -> str:
    return " ".join(format_slow_devices(ServingRecord(devices=devices)))


def test_alike_devices_are_not_named() -> None:
    text = tell(device("a"), device("b"), device("c", 0.12))
    assert text == "Half of the 30 requests were answered within 100 ms at the median device."


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ((0.3, 0.1, 0.0, 0.0), "requests wait there"),
        ((0.0, 0.4, 0.0, 0.0), "it computes slowly"),
        ((0.0, 0.1, 0.3, 0.0), "its link to the server is slow"),
        ((0.0, 0.1, 0.0, 0.3), "the server keeps it waiting"),
    ],
)
def test_the_largest_excess_is_the_reason(
    parts: tuple[float, float, float, float], reason: str
) -> None:
    text = tell(device("a"), device("b"), device("slow", 0.4, parts=parts))
    assert f"slow takes 4.0 times as long: {reason}" in text


def test_who_computes_more_because_of_its_link_does_not_compute_slowly() -> None:
    fast = (0.0, 0.05, 0.05, 0.01)
    few = {0: 5, 4: 5}
    text = tell(
        device("a", parts=fast, cuts=few),
        device("b", parts=fast, cuts=few),
        device("slow", 0.4, parts=(0.0, 0.1, 0.05, 0.0)),
    )
    assert "slow takes 4.0 times as long: it computes more blocks itself" in text


def test_shed_and_hopeless_requests_are_told() -> None:
    text = tell(device("a", shed=2), device("b", hopeless=3))
    assert "2 were shed, because too many waited already." in text
    assert "For 3 no cut was expected to meet the deadline." in text
