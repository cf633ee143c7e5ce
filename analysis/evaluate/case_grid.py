"""Grid of evaluation cases: every combination of injection, run size, noise and imbalance.

All random choices of a case derive from the grid's seed and the case's number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np

from laggard.analysis.detection.families import FAMILIES
from laggard.analysis.evaluate.synthetic.trace_spec import (
    Imbalance,
    Injection,
    Noise,
    Tier,
    TraceSpec,
)
from laggard.core.run_schema import StragglerFamily, StragglerKind

Injected = StragglerFamily | Literal["none", "both"]
Crowd = Literal["minority", "majority"]

INJECTED_FAMILIES: tuple[Injected, ...] = ("compute", "network", "storage", "both")
KINDS: tuple[StragglerKind, ...] = ("deterministic", "dynamic")
MAGNITUDES = (1.2, 1.5, 2.0, 4.0)
LENGTHS = (10, 20, 50, 100, 200)
WORKERS = (4, 8, 16, 32, 64)
CROWDS: tuple[Crowd, ...] = ("minority", "majority")
NOISES = (0.02, 0.05, 0.10, 0.15)
REPETITIONS = 5
IMBALANCES: tuple[Imbalance, ...] = ("none", "shares", "none", "drawn", "none", "shift")
STEPS = 400
# Dynamic injections begin no earlier than this step.
_LEAD_IN = 20
# Random streams of a case: its trace and its injections; and of the grid: the order of the cases.
_TRACE, _DRAW, _ORDER = range(3)
_PAIRS = (("cloud", "fog"), ("fog", "edge"), ("cloud", "edge"))


@dataclass(frozen=True)
class EvaluationCase:
    """One run to generate and judge.

    Attributes:
        number: position in the grid; with `seed`, it determines all random choices.
        seed: seed of the grid.
        family: slowed family; "both" is compute and network, "none" is neither.
        kind: `deterministic` (throughout the run) or `dynamic` (temporarily).
        magnitude: ratio of slow to normal durations.
        length: number of slow steps of a dynamic case.
        workers: number of ranks.
        crowd: whether a minority or a majority of the ranks is slow.
        noise: standard deviation of log durations from step to step.
        imbalance: imbalance of the work in a case without injection.
    """

    number: int
    seed: int
    family: Injected
    kind: StragglerKind
    magnitude: float
    length: int
    workers: int
    crowd: Crowd
    noise: float
    imbalance: Imbalance = "none"

    @property
    def name(self) -> str:
        """Return a description of the case in one line."""
        around = f"{self.workers} workers, noise {self.noise:g}, #{self.seed}.{self.number}"
        if self.family == "none":
            return (
                f"clean, work {'equal' if self.imbalance == 'none' else self.imbalance}, {around}"
            )
        span = f"{self.length} steps" if self.kind == "dynamic" else "all steps"
        crowd = f"{self.crowd}, " if slows_hosts(self.family) else ""
        return f"{self.family} {self.kind} x{self.magnitude:g}, {span}, {crowd}{around}"

    def axes(self) -> dict[str, str]:
        """Return the position in the grid, from axis to value, for tables.

        Clean runs have no values on the axes of injections.
        """
        axes = {"injected": self.family, "workers": str(self.workers), "noise": f"{self.noise:g}"}
        if self.family == "none":
            return axes | {"work": "equal" if self.imbalance == "none" else self.imbalance}
        axes |= {"kind": self.kind, "magnitude": f"{self.magnitude:g}"}
        if self.kind == "dynamic":
            axes["steps"] = str(self.length)
        return axes | {"slow ranks": self.crowd} if slows_hosts(self.family) else axes

    def to_trace_spec(self) -> TraceSpec:
        """Return the specification of the run; the same case gives the same run."""
        spec = TraceSpec(
            tiers=build_tiers(self.workers),
            steps=STEPS,
            fetch_s=0.02,
            noise=Noise(
                sigma=self.noise,
                transfer_sigma=self.noise,
                # Together with the jitter of sigma / 2 that every phase has, this makes sigma.
                fetch_sigma=self.noise * math.sqrt(0.75),
                link_sigma=self.noise,
            ),
            imbalance=self.imbalance,
            seed=_make_generator(self, _TRACE).integers(2**31).item(),
        )
        return replace(spec, injections=tuple(_draw_injections(self, _make_generator(self, _DRAW))))


def list_slowed_families(injected: Injected) -> tuple[StragglerFamily, ...]:
    """Return the families that a case slows."""
    if injected == "none":
        return ()
    return ("compute", "network") if injected == "both" else (injected,)


def slows_hosts(injected: Injected) -> bool:
    """Return whether a case slows hosts, not links alone."""
    return any(not FAMILIES[each].uses_links for each in list_slowed_families(injected))


def build_tiers(workers: int) -> tuple[Tier, ...]:
    """Return tiers of equal hosts: a quarter of the ranks in cloud and fog each, half in edge."""
    quarter = workers // 4
    return (Tier("cloud", quarter), Tier("fog", quarter), Tier("edge", workers - 2 * quarter))


def _make_generator(case: EvaluationCase, purpose: int) -> np.random.Generator:
    return np.random.default_rng((case.seed, case.number, purpose))


def _draw_injections(case: EvaluationCase, rng: np.random.Generator) -> Iterator[Injection]:
    for family in list_slowed_families(case.family):
        first, last = _draw_window(case, rng)
        if not FAMILIES[family].uses_links:
            for rank in _draw_slow_ranks(case, rng):
                yield Injection(family, case.magnitude, first, last, rank=rank)
        elif rng.random() < 0.5:
            pair = _PAIRS[int(rng.integers(len(_PAIRS)))]
            yield Injection(family, case.magnitude, first, last, tiers=pair)
        else:
            rank = int(rng.integers(case.workers))
            yield Injection(family, case.magnitude, first, last, rank=rank)


def _draw_window(case: EvaluationCase, rng: np.random.Generator) -> tuple[int, int | None]:
    if case.kind == "deterministic":
        return 0, None
    first = int(rng.integers(_LEAD_IN, STEPS - case.length + 1))
    return first, first + case.length - 1


def _draw_slow_ranks(case: EvaluationCase, rng: np.random.Generator) -> list[int]:
    """Choose up to a quarter of the ranks, or a majority of them.

    A deterministic majority consists of every tier but the first: slow is defined relative to the
    fastest class, so some ranks must remain normal. A dynamic majority has just over 60 % of the
    ranks: a slowdown of three quarters at once is, by definition, one of the machine under them.
    """
    if case.crowd == "minority":
        count = int(rng.integers(1, max(case.workers // 4, 1) + 1))
    elif case.kind == "deterministic":
        return list(range(build_tiers(case.workers)[0].hosts, case.workers))
    else:
        count = 3 * case.workers // 5 + 1
    return sorted(rng.choice(case.workers, count, replace=False).tolist())


def build_full_grid(seed: int) -> tuple[EvaluationCase, ...]:
    """Return all cases, ordered so that every prefix is a fair sample.

    Args:
        seed: seed of the order and of all random choices in the cases.

    Returns:
        The cases; a clean one follows every two others. Among those others, each combination of
        family and kind occurs equally often until its cases are used up.
    """
    strata = [
        _build_cases(seed, family, kind) for family, kind in product(INJECTED_FAMILIES, KINDS)
    ]
    slowed = [case for stratum in strata for case in stratum]
    cases = [
        replace(case, number=n)
        for n, case in enumerate((*slowed, *_build_clean_cases(seed, len(slowed) // 2)))
    ]
    rng = np.random.default_rng((seed, len(cases), _ORDER))
    # Every stratum is shuffled; sorting by position in the stratum interleaves the strata.
    turns = np.concatenate([rng.permutation(len(stratum)) for stratum in strata])
    in_turn = np.lexsort((rng.random(len(slowed)), turns))
    clean = len(slowed) + rng.permutation(len(cases) - len(slowed))
    order = np.insert(in_turn, np.arange(2, len(slowed) + 1, 2), clean)
    return tuple(cases[index] for index in order)


def _build_cases(seed: int, family: Injected, kind: StragglerKind) -> list[EvaluationCase]:
    lengths = LENGTHS if kind == "dynamic" else (STEPS,)
    crowds: Sequence[Crowd] = CROWDS if slows_hosts(family) else ("minority",)
    axes = product(MAGNITUDES, lengths, WORKERS, crowds, NOISES, range(REPETITIONS))
    return [
        EvaluationCase(0, seed, family, kind, m, length, w, crowd, noise)
        for m, length, w, crowd, noise, _ in axes
    ]


def _build_clean_cases(seed: int, count: int) -> list[EvaluationCase]:
    cells = list(product(IMBALANCES, WORKERS, NOISES))
    chosen = (cells[index % len(cells)] for index in range(count))
    return [
        EvaluationCase(0, seed, "none", "dynamic", 1.0, 0, workers, "minority", noise, imbalance)
        for imbalance, workers, noise in chosen
    ]
