"""What a measurement inside the user-mode kernel may be off: its one virtual CPU is a process among
others."""

from __future__ import annotations


def takes(measured_ms: float, asked_ms: float) -> bool:
    """Never sooner than asked, but for the granularity of the clock; later where a busy machine
    lets the one virtual CPU wait."""
    return measured_ms > asked_ms - 0.5
