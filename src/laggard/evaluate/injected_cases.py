"""Slowdowns that `laggard evaluate --emulated` injects into real runs of one small scenario.

They are drawn from a seed and expressed as overrides of the scenario.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import numpy as np

from laggard.analysis.detection.families import COMPUTE, FAMILIES
from laggard.analysis.evaluate.case_grid import Injected, list_slowed_families
from laggard.core.run_schema import StragglerFamily

SCENARIO = Path(str(files("laggard.experiments") / "evaluation"))
HOSTS = ("cloud.trainer.1.1", "fog.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2")
TIER_PAIRS = (("cloud", "fog"), ("fog", "edge"), ("cloud", "edge"))
CPU_PERCENT, READ_KB_PER_S, RATE_MBPS = 16.0, 200.0, 100.0
"""CPU share, drive and link rate of the scenario without injection."""
MAGNITUDES = (1.5, 2.0, 4.0)
_FAMILY_CYCLE: tuple[Injected, ...] = ("compute", "network", "none", "storage", "both", "none")


@dataclass(frozen=True)
class Slowdown:
    """Event that makes a host, or all links between two tiers, `magnitude` times slower.

    It begins at `at_s` and lasts `for_s` seconds.
    """

    family: StragglerFamily
    target: str | tuple[str, str]
    magnitude: float
    at_s: float
    for_s: float

    def to_yaml(self) -> str:
        """Return the event as an entry of `heterogeneity.dynamic`."""
        when = f"at: {self.at_s:g}s, for: {self.for_s:g}s"
        if isinstance(self.target, tuple):
            src, dst = self.target
            ends = f'src: "{src}.*", dst: "{dst}.*", symmetric: true'
            return f"{{{when}, {ends}, rate: {RATE_MBPS / self.magnitude:g}mbit}}"
        limit = (
            f"cpu: {CPU_PERCENT / self.magnitude:g}%"
            if self.family == COMPUTE.name
            else f"read: {READ_KB_PER_S / self.magnitude:g}kB/s"
        )
        return f'{{{when}, hosts: "{self.target}", {limit}}}'


@dataclass(frozen=True)
class EmulatedCase:
    """One run and its slowdowns."""

    family: Injected
    slowdowns: tuple[Slowdown, ...]

    @property
    def name(self) -> str:
        """Return a description on one line."""
        parts = [
            f"{each.family} x{each.magnitude:g} of {each.target} at {each.at_s:g} s"
            for each in self.slowdowns
        ]
        return "; ".join(parts) or "clean"

    def overrides(self) -> tuple[str, ...]:
        """Return the overrides of the scenario."""
        return (
            (f"heterogeneity.dynamic=[{', '.join(each.to_yaml() for each in self.slowdowns)}]",)
            if self.slowdowns
            else ()
        )


def draw_cases(seed: int, count: int) -> tuple[EmulatedCase, ...]:
    """Draw the slowdowns of runs.

    Args:
        seed: seed; equal seeds give equal cases
        count: number of runs

    Returns:
        Cases with the families in turn; a third of the cases is clean.
    """
    rng = np.random.default_rng(seed)
    return tuple(
        _draw_case(_FAMILY_CYCLE[index % len(_FAMILY_CYCLE)], rng) for index in range(count)
    )


def _draw_case(family: Injected, rng: np.random.Generator) -> EmulatedCase:
    return EmulatedCase(
        family, tuple(_draw_slowdown(each, rng) for each in list_slowed_families(family))
    )


def _draw_slowdown(family: StragglerFamily, rng: np.random.Generator) -> Slowdown:
    targets = TIER_PAIRS if FAMILIES[family].uses_links else HOSTS
    target = targets[int(rng.integers(len(targets)))]
    # Start at 5 to 9 s, duration 5 to 8 s.
    at_s, for_s = (round(float(seconds), 1) for seconds in rng.uniform((5.0, 5.0), (9.0, 8.0)))
    return Slowdown(family, target, float(rng.choice(MAGNITUDES)), at_s, for_s)
