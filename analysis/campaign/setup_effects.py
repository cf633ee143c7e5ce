"""Setups of a group: their measurements, effects against the first setup, and the best one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from laggard.analysis.campaign.result_table import METRICS, POSITIVE_METRICS
from laggard.analysis.campaign.setups import CampaignSetup, SetupGroup
from laggard.analysis.campaign.speed_measure import SpeedMeasure
from laggard.analysis.estimates.best_variant import estimate_best
from laggard.analysis.estimates.bootstrap import Effect, estimate_effect
from laggard.analysis.estimates.estimate import (
    Estimate,
    Key,
    estimate_geometric_mean,
    estimate_mean,
    to_exponential,
    to_logarithms,
)
from laggard.analysis.estimates.power import Power, estimate_power

_LARGEST = {"cost": float("inf")}
"""Largest possible values; those of the other metrics are shares of one."""


@dataclass(frozen=True)
class ComparedSetup:
    """One setup of a campaign.

    Attributes:
        name: values that distinguish it from the other setups of its group.
        values: text of every axis, by its name.
        repeats: number of done cells.
        metrics: mean of every measured metric; geometric for makespan and speed.
        effects: effect by name; empty for the first setup of the group. `speedup` is how many times
            as fast as the first setup this one is, and `cost_ratio` this one's price divided by the
            first setup's. `accuracy`, `fairness` and `lost_share` are this setup's value minus the
            first setup's.
        best: probability that the setup is the fastest of its group; None with fewer than two
            repeats of a setup.
    """

    name: str
    values: Mapping[str, str]
    repeats: int
    metrics: Mapping[str, Estimate]
    effects: Mapping[str, Effect]
    best: float | None


@dataclass(frozen=True)
class ComparedGroup:
    """Setups that were compared with each other.

    Attributes:
        name: values that they share; empty if all setups of the table are in one group.
        setups: the setups; the first one is the baseline.
        fastest: name of the fastest setup; None if there is only one setup.
        second: name of the second one.
        power: power of the comparison of these two; None with fewer than two repeats.
    """

    name: str
    setups: tuple[ComparedSetup, ...]
    fastest: str | None
    second: str | None
    power: Power | None


def compare_group(group: SetupGroup, measure: SpeedMeasure) -> ComparedGroup:
    """Compare the setups of a group with its first one."""
    first = group.setups[0]
    compared = [_compare_setup(setup, first, measure) for setup in group.setups]
    if len(compared) < 2:
        return ComparedGroup(group.name, tuple(compared), None, None, None)
    slowness = [measure.collect_slowness(setup) for setup in group.setups]
    shares = estimate_best(slowness)
    if shares is not None:
        compared = [replace(each, best=share) for each, share in zip(compared, shares, strict=True)]
    order = sorted(range(len(compared)), key=lambda n: statistics.fmean(slowness[n].values()))
    fastest, second = order[:2]
    return ComparedGroup(
        group.name,
        tuple(compared),
        compared[fastest].name,
        compared[second].name,
        estimate_power(slowness[fastest], slowness[second]),
    )


def _compare_setup(
    setup: CampaignSetup, first: CampaignSetup, measure: SpeedMeasure
) -> ComparedSetup:
    metrics = {}
    for name in METRICS:
        values = list(setup.collect(name).values())
        if not values:
            continue
        metrics[name] = (
            estimate_geometric_mean(values)
            if name in POSITIVE_METRICS
            else estimate_mean(values, 0.0, _LARGEST.get(name, 1.0))
        )
    effects = {} if setup is first else _estimate_effects(setup, first, measure)
    return ComparedSetup(setup.name, setup.values, len(setup.rows), metrics, effects, None)


def _estimate_effects(
    setup: CampaignSetup, first: CampaignSetup, measure: SpeedMeasure
) -> dict[str, Effect]:
    effects = {
        "speedup": _estimate_ratio(measure.collect_slowness(setup), measure.collect_slowness(first))
    }
    before, after = first.collect("cost"), setup.collect("cost")
    # A price of 0 has no ratio.
    if before and after and min(*before.values(), *after.values()) > 0:
        effects["cost_ratio"] = _estimate_ratio(to_logarithms(before), to_logarithms(after))
    for name in ("accuracy", "fairness", "lost_share"):
        before, after = first.collect(name), setup.collect(name)
        if before and after:
            effects[name] = estimate_effect(before, after, 1.0)
    return effects


def _estimate_ratio(below: Mapping[Key, float], above: Mapping[Key, float]) -> Effect:
    """Return the ratio of two quantities from their logarithms."""
    effect = estimate_effect(below, above)
    return replace(effect, value=to_exponential(effect.value))
