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
_KEEPS_MORE = "it computes more blocks itself, since the way over the server takes longer still"
SAME_SPEED = 1.3
"""Ratio of the seconds of a block up to which two devices compute alike."""


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

    part = max(_PARTS, key=excess_s)
    speeds = [block_s for each in devices if (block_s := _compute_block_s(each)) is not None]
    own_s = _compute_block_s(device)
    if part == "computed_s" and own_s is not None:
        is_slow = own_s > SAME_SPEED * statistics.median(speeds)
        return _PARTS[part] if is_slow or len({*map(_count_blocks, devices)}) == 1 else _KEEPS_MORE
    return _PARTS[part]


def _count_blocks(device: DeviceService) -> float:
    """Return the blocks that a device computes of a mean request."""
    answered = sum(device.cuts.values())
    return sum(cut * count for cut, count in device.cuts.items()) / answered if answered else 0.0


def _compute_block_s(device: DeviceService) -> float | None:
    """Return the mean seconds of a block at a device; None if it computed none."""
    blocks = _count_blocks(device)
    return device.parts.computed_s / blocks if device.parts is not None and blocks else None
