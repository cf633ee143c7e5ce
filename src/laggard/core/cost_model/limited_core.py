"""Speed of a process that has a share of a core, relative to its processor time."""

from __future__ import annotations


def expected_efficiency(share: float) -> float:
    """Return the expected work per processor time on a share of a core, relative to full speed.

    A process that is held back finds cold caches when it resumes, so small shares do half as much
    work with the same processor time. `laggard.network_emulation.dilation.compute_load` plans with
    the same model.

    Examples:
        >>> expected_efficiency(1.0), expected_efficiency(0.0)
        (1.0, 0.5)
    """
    return 1 / (2 - share)
