"""Setups of a group: their measurements, effects against the first setup, and the best one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from laggard.analysis.campaign.result_table import METRICS
from laggard.analysis.campaign.setups import CampaignSetup, SetupGroup
from laggard.analysis.estimates.best_variant import estimate_best
from laggard.analysis.estimates.bootstrap import Effect, estimate_effect
from laggard.analysis.estimates.estimate import (
    Estimate,
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
        metrics: mean of every measured metric; geometric for the makespan.
        effects: effect by name; empty for the first setup of the group. `speedup` is the first
            setup's makespan divided by this one's, and `cost_ratio` this one's price divided by the
            first setup's. `accuracy`, `fairness` and `lost_share` are this setup's value minus the
            first setup's.
        best: probability that the setup has the smallest makespan of its group; None with fewer
            than two repeats of a setup.
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
        fastest: name of the setup with the smallest makespan; None if there is only one setup.
        second: name of the second one.
        power: power of the comparison of these two; None with fewer than two repeats.
    """

    name: str
    setups: tuple[ComparedSetup, ...]
    fastest: str | None
    second: str | None
    power: Power | None


def compare_group(group: SetupGroup) -> ComparedGroup:
    """Compare the setups of a group with its first one."""
    first = group.setups[0]
    compared = [_compare_setup(setup, first) for setup in group.setups]
    if len(compared) < 2:
        return ComparedGroup(group.name, tuple(compared), None, None, None)
    makespans = [to_logarithms(setup.collect("makespan_s")) for setup in group.setups]
    shares = estimate_best(makespans)
    if shares is not None:
        compared = [replace(each, best=share) for each, share in zip(compared, shares, strict=True)]
    order = sorted(range(len(compared)), key=lambda n: compared[n].metrics["makespan_s"].mean)
    fastest, second = order[:2]
    return ComparedGroup(
        group.name,
        tuple(compared),
        compared[fastest].name,
        compared[second].name,
        estimate_power(makespans[fastest], makespans[second]),
    )


def _compare_setup(setup: CampaignSetup, first: CampaignSetup) -> ComparedSetup:
    metrics = {}
    for name in METRICS:
        values = list(setup.collect(name).values())
        if not values:
            continue
        metrics[name] = (
            estimate_geometric_mean(values)
            if name == "makespan_s"
            else estimate_mean(values, 0.0, _LARGEST.get(name, 1.0))
        )
    effects = {} if setup is first else _estimate_effects(setup, first)
    return ComparedSetup(setup.name, setup.values, len(setup.rows), metrics, effects, None)


def _estimate_effects(setup: CampaignSetup, first: CampaignSetup) -> dict[str, Effect]:
    effects = {"speedup": _estimate_ratio(setup, first, "makespan_s")}
    prices = [*setup.collect("cost").values(), *first.collect("cost").values()]
    # A price of 0 has no ratio.
    if setup.collect("cost") and first.collect("cost") and min(prices) > 0:
        effects["cost_ratio"] = _estimate_ratio(first, setup, "cost")
    for name in ("accuracy", "fairness", "lost_share"):
        before, after = first.collect(name), setup.collect(name)
        if before and after:
            effects[name] = estimate_effect(before, after, 1.0)
    return effects


def _estimate_ratio(below: CampaignSetup, above: CampaignSetup, metric: str) -> Effect:
    effect = estimate_effect(
        to_logarithms(below.collect(metric)), to_logarithms(above.collect(metric))
    )
    return replace(effect, value=to_exponential(effect.value))
