"""Sentences about an inference: its latency, and which devices are slow and why."""

from __future__ import annotations

import statistics

from laggard.core.serving.serving_record import DeviceService, ServingRecord
from laggard.core.text.text_format import format_seconds

SLOW = 1.5
"""Multiple of the median device's latency from which a device counts as a straggler."""

_PARTS = {
    "queue_s": "requests wait there, for others or for the votes of neighbors",
    "computed_s": "it computes slowly",
    "link_s": "its link to the server is slow",
    "server_s": "the server keeps it waiting",
}


def format_slow_devices(serving: ServingRecord) -> tuple[str, ...]:
    """Return sentences about the latency of an inference, and about every device that is slow."""
    devices = [each for each in serving.devices if each.parts is not None]
    if not devices:
        return ("No request was answered.",)
    medians = {each.host: each.latency_s[50] for each in devices}
    usual_s = statistics.median(medians.values())
    total = sum(each.requests for each in serving.devices)
    sentences = [
        (
            f"Half of the {total} requests were answered within {format_seconds(usual_s)} at the"
            " median device."
        )
    ]
    shed = sum(each.shed for each in serving.devices)
    if shed:
        sentences.append(f"{shed} were shed, because too many waited already.")
    hopeless = sum(each.hopeless for each in serving.devices)
    if hopeless:
        sentences.append(f"For {hopeless} no cut was expected to meet the deadline.")
    sentences += [
        f"{each.host} takes {medians[each.host] / usual_s:.1f} times as long: "
        f"{_find_reason(each, devices)}."
        for each in devices
        if medians[each.host] > SLOW * usual_s
    ]
    return tuple(sentences)


def _find_reason(device: DeviceService, devices: list[DeviceService]) -> str:
    """Return which part of the latency exceeds that of the median device most."""

    def excess_s(part: str) -> float:
        usual_s = statistics.median(getattr(each.parts, part) for each in devices)
        return float(getattr(device.parts, part) - usual_s)

    return _PARTS[max(_PARTS, key=excess_s)]
