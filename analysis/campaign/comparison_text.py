"""Text of a campaign's comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from laggard.analysis.campaign.axis_effects import AxisEffect, AxisEffects
from laggard.analysis.campaign.campaign_comparison import CampaignComparison
from laggard.analysis.campaign.crossings import Crossing
from laggard.analysis.campaign.setup_effects import ComparedGroup, ComparedSetup
from laggard.analysis.campaign.setups import format_value, format_values, name_axes
from laggard.analysis.campaign.speed_measure import SpeedMeasure
from laggard.analysis.estimates.bootstrap import Effect
from laggard.analysis.estimates.estimate import Estimate, scale_estimate
from laggard.analysis.estimates.estimate_text import format_estimate, format_percent_estimate
from laggard.analysis.estimates.power import MOST_REPEATS

_MIN_SHARE = 0.005
"""Interactions below this part of the variation are not printed."""


def format_campaign(compared: CampaignComparison) -> str:
    """Return the comparison as text.

    Examples:
        >>> from laggard.analysis.campaign.campaign_comparison import compare_campaign
        >>> print(format_campaign(compare_campaign(Path("runs/campaigns/sweep"))))
        fog
          strategy=allreduce, rate=20mbit (6 runs, baseline)
            makespan 40.6 (37.8 to 43.5) s
            accuracy ...
    """
    lines: list[str] = []
    for group in compared.groups:
        lines += [*_format_group(group, compared.measure), ""]
    lines += _format_effects(compared.effects, compared.measure)
    lines += [*_format_crossings(compared.crossings), *compared.left_out]
    return "\n".join(lines).rstrip()


def _format_group(group: ComparedGroup, measure: SpeedMeasure) -> Iterator[str]:
    indent = "  " if group.name else ""
    if group.name:
        yield group.name
    for setup in group.setups:
        for line in _format_setup(setup, measure):
            yield indent + line
    for line in _format_best(group, measure):
        yield indent + line


def _format_setup(setup: ComparedSetup, measure: SpeedMeasure) -> Iterator[str]:
    metrics, effects = setup.metrics, setup.effects
    role = "" if effects else ", baseline"
    yield f"{setup.name} ({setup.repeats} run{'s' if setup.repeats > 1 else ''}{role})"
    yield (
        f"  {measure.name} {_format_measure(metrics[measure.column], measure)}"
        f"{_format_ratio(effects.get('speedup'), 'times as fast')}"
    )
    if "accuracy" in metrics:
        points = _format_points(effects.get("accuracy"))
        yield f"  accuracy {format_percent_estimate(metrics['accuracy'])}{points}"
    if "cost" in metrics:
        ratio = _format_ratio(effects.get("cost_ratio"), "times the price")
        yield f"  price {format_estimate(metrics['cost'], '{:.3g}')}{ratio}"
    if "fairness" in metrics:
        change = _format_change(effects.get("fairness"))
        yield f"  fairness {format_estimate(metrics['fairness'], '{:.2f}')}{change}"
    if "lost_share" in metrics:
        points = _format_points(effects.get("lost_share"))
        yield f"  lost to all causes found {format_percent_estimate(metrics['lost_share'])}{points}"


def _format_ratio(effect: Effect | None, words: str) -> str:
    return "" if effect is None else f"; {format_estimate(effect.value, '{:.2f}')} {words}"


def _format_points(effect: Effect | None) -> str:
    if effect is None:
        return ""
    return f"; {format_estimate(scale_estimate(effect.value, 100), '{:+.1f}')} points"


def _format_change(effect: Effect | None) -> str:
    return "" if effect is None else f"; {format_estimate(effect.value, '{:+.2f}')}"


def _format_best(group: ComparedGroup, measure: SpeedMeasure) -> Iterator[str]:
    if group.fastest is None:
        return
    best = {setup.name: setup.best for setup in group.setups}[group.fastest]
    if best is None:
        yield f"fastest: {group.fastest}; without two repeats of each setup, this may be chance"
    else:
        yield f"best: {group.fastest}, with a probability of {format_probability(best)}"
    if group.power is not None:
        kind = "pairs of repeats" if group.power.is_paired else "repeats of each"
        yield (
            f"power: {_format_repeats(group.power.repeats)} {kind} tell it from {group.second} in"
            f" 80 % of campaigns, and as many as now in {format_probability(group.power.power)}"
        )
    methods = dict.fromkeys(
        f"{effect.method}, {effect.repeats} repeats"
        for setup in group.setups
        for name, effect in setup.effects.items()
        if name == "speedup" and effect.method != "none"
    )
    yield (
        f"95 % intervals of {measure.name}s: {'; '.join(methods)}"
        if methods
        else "one repeat has no interval: set repeats of the campaign to 3 or more"
    )


def format_probability(share: float) -> str:
    """Format an estimated probability, which is never exactly 0 or 1."""
    if share > 0.995:
        return "over 99 %"
    return "under 1 %" if share < 0.005 else f"{100 * share:.0f} %"


def _format_repeats(repeats: int | None) -> str:
    return f"more than {MOST_REPEATS}" if repeats is None else str(repeats)


def _format_effects(effects: AxisEffects, measure: SpeedMeasure) -> Iterator[str]:
    if len(effects.axes) < 2:
        return
    yield f"mean {measure.name} by axis, over all setups"
    names = name_axes([effect.axes[0] for effect in effects.axes])
    for effect in effects.axes:
        yield f"  {names[effect.axes[0]]}{_format_share(effect)}"
        for each in effect.values:
            yield (
                f"    {format_value(each.values[0])}:"
                f" {_format_measure(each.mean, measure)}, {each.ratio:.2f} times the mean"
            )
    for effect in effects.pairs:
        if effect.share is not None and effect.share >= _MIN_SHARE:
            yield f"  {' × '.join(names[axis] for axis in effect.axes)}{_format_share(effect)}"
            largest = max(effect.values, key=lambda each: max(each.ratio, 1 / each.ratio))
            yield (
                f"    {', '.join(map(format_value, largest.values))}: {largest.ratio:.2f} times"
                " the product of both effects"
            )
    if not effects.is_complete:
        yield "  some combinations of values are missing, so axes cannot be told apart for sure"
    yield ""


def _format_measure(value: Estimate, measure: SpeedMeasure) -> str:
    return f"{format_estimate(value, '{:.0f}' if measure.is_rate else '{:.1f}')} {measure.unit}"


def _format_crossings(crossings: Sequence[Crossing]) -> Iterator[str]:
    if crossings:
        yield "crossing points, with the part of the axis where neither is surely faster"
    for each in crossings:
        shared = format_values(each.shared)
        values = [format_values({each.compared: value}) for value in (each.before, each.after)]
        yield (
            f"  {values[0]} is faster than {values[1]} up to"
            f" {name_axes([each.axis])[each.axis]}={format_estimate(each.at, '{:.3g}')}"
            f"{f' {each.unit}' if each.unit else ''}{f' ({shared})' if shared else ''}"
        )
    if crossings:
        yield ""


def _format_share(effect: AxisEffect) -> str:
    return "" if effect.share is None else f" ({100 * effect.share:.0f} % of the variation)"
