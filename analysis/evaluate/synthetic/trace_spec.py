"""Specification of a synthetic run: tiers, durations, noise and injected slowdowns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from laggard.core.run_schema import StragglerFamily

Imbalance = Literal["none", "shares", "drawn", "shift"]
"""Imbalance of the work: none; fixed shares per rank (`shares`); shares drawn in each step
(`drawn`); or one rank with twice the work for some time (`shift`)."""


@dataclass(frozen=True)
class Tier:
    """One tier of equal hosts; `slowness` is the ratio of its step times to the fastest tier's."""

    name: str
    hosts: int
    slowness: float = 1.0


@dataclass(frozen=True)
class Injection:
    """Slowdown to inject, by `factor`; steps are inclusive, and `last=None` is the end of the run.

    For compute and storage, `rank` is the slow rank. For the network, `tiers` is the slow
    (unordered) tier pair; without it, only the link from `rank` to the next rank of the ring is
    slow.
    """

    family: StragglerFamily
    factor: float
    first: int = 0
    last: int | None = None
    rank: int | None = None
    tiers: tuple[str, str] | None = None


@dataclass(frozen=True)
class Noise:
    """Multiplicative noise of durations.

    Attributes:
        sigma: lognormal jitter per rank and step.
        spike: probability per step that a spike of about 2x begins, which lasts one to three
            steps.
        drift: amplitude of slow drift that all ranks share.
        host: spread of the hosts' true speeds.
        transfer_sigma: jitter of collectives.
        episode: probability per step that half of the ranks (those of one core) become 1.3 times
            slower for 5 to 30 steps.
        fetch_sigma: jitter of reading, in addition to half of `sigma`.
        link_sigma: jitter of the links' busy time.
    """

    sigma: float = 0.05
    spike: float = 0.01
    drift: float = 0.04
    host: float = 0.01
    transfer_sigma: float = 0.10
    episode: float = 0.0
    fetch_sigma: float = 0.0
    link_sigma: float = 0.0


QUIET = Noise(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class TraceSpec:
    """Specification of a run; phase durations are seconds of the fastest tier at a full batch."""

    tiers: tuple[Tier, ...] = (Tier("cloud", 2), Tier("fog", 2), Tier("edge", 4))
    steps: int = 600
    samples: int = 16
    steps_per_epoch: int = 12
    fetch_s: float = 0.001
    prep_s: float = 0.002
    forward_s: float = 0.020
    backward_s: float = 0.040
    optimizer_s: float = 0.003
    other_s: float = 0.0005
    fixed_share: float = 0.2
    gradient_bytes: int = 600_000
    buffer_bytes: int = 4_000
    rate_mbps: float = 200.0
    tier_rates_mbps: Mapping[tuple[str, str], float] = field(default_factory=dict)
    evaluate_every: int = 60
    evaluate_s: float = 0.5
    warm_up_steps: int = 3
    noise: Noise = Noise()
    injections: tuple[Injection, ...] = ()
    imbalance: Imbalance = "none"
    with_links: bool = True
    seed: int = 0
