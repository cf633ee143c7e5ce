"""Tables of the devices that answer requests."""

from __future__ import annotations

from laggard.analysis.report.run_setup import ReportTable
from laggard.analysis.tables.load_run import RunData
from laggard.core.serving.serving_record import DeviceService
from laggard.core.text.text_format import format_percent, format_seconds


def build_latency_table(run: RunData) -> ReportTable | None:
    """Return the latencies of every device of an inference; None for another run."""
    if run.serving is None:
        return None
    devices = run.serving.devices
    return ReportTable(
        f"Requests at the devices ({len(devices)})",
        (
            "Device",
            "Requests",
            "50 %",
            "90 %",
            "99 %",
            "Late",
            "Slowdown",
            "Waits",
            "Computes",
            "Link",
            "Server",
        ),
        tuple(map(_format_latencies, devices)),
    )


def build_answer_tables(run: RunData) -> tuple[ReportTable, ...]:
    """Return the table of what became of the requests of every device; none for another run."""
    if run.serving is None:
        return ()
    devices = run.serving.devices
    return (
        ReportTable(
            f"Answers of the devices ({len(devices)})",
            ("Device", "Shed", "Hopeless", "Right", "Models asked", "Requests by blocks computed"),
            tuple(map(_format_answers, devices)),
        ),
    )


def _format_latencies(device: DeviceService) -> tuple[str, ...]:
    parts = device.parts
    return (
        device.host,
        str(device.requests),
        *(_format_seconds(device.latency_s.get(each)) for each in (50, 90, 99)),
        "-" if device.violations is None else format_percent(device.violations),
        "-" if device.antt is None else f"{device.antt:.2f}x",
        *(
            ("-",) * 4
            if parts is None
            else map(
                _format_seconds, (parts.queue_s, parts.computed_s, parts.link_s, parts.server_s)
            )
        ),
    )


def _format_answers(device: DeviceService) -> tuple[str, ...]:
    return (
        device.host,
        str(device.shed),
        str(device.hopeless),
        "-" if device.accuracy is None else format_percent(device.accuracy),
        f"{device.answers:.2f}",
        ", ".join(f"{cut}: {count}" for cut, count in device.cuts.items()) or "-",
    )


def _format_seconds(seconds: float | None) -> str:
    return "-" if seconds is None else format_seconds(seconds)
