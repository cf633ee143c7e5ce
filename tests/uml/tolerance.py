"""What a measurement inside the user-mode kernel may be off: its one virtual CPU is a process among
others."""

from __future__ import annotations


def takes(measured_ms: float, asked_ms: float) -> bool:
    """Never sooner than asked; later where a busy machine lets the one virtual CPU wait (quiet:
    within 0.1 ms)."""
    return asked_ms - 0.5 < measured_ms < asked_ms * 1.05 + 2.0
