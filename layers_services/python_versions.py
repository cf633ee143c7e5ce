"""Python versions on which workers run."""

from __future__ import annotations

PythonVersion = tuple[int, int]
SUPPORTED_PYTHONS: tuple[PythonVersion, ...] = ((3, 11), (3, 12), (3, 13))


def format_supported_pythons() -> str:
    """Return the supported versions as text, such as `3.11 to 3.13`."""
    first, last = SUPPORTED_PYTHONS[0], SUPPORTED_PYTHONS[-1]
    return f"{first[0]}.{first[1]} to {last[0]}.{last[1]}"
