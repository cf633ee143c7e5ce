"""Comparison of a campaign's setups: entry point and JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from laggard.analysis.campaign.axis_effects import AxisEffects, estimate_axis_effects
from laggard.analysis.campaign.crossings import Crossing, find_crossings
from laggard.analysis.campaign.result_table import load_results
from laggard.analysis.campaign.setup_effects import ComparedGroup, compare_group
from laggard.analysis.campaign.setups import group_setups
from laggard.analysis.campaign.speed_measure import (
    SpeedMeasure,
    choose_measure,
    describe_time_limits,
)
from laggard.core.errors import InputError

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True)
class CampaignComparison:
    """Comparison of all setups of a campaign.

    Attributes:
        table: path of the table.
        measure: what speedups are computed from.
        groups: setups that were compared with each other.
        effects: effects of axes and pairs on the measure, over all groups.
        crossings: values of axes at which another setup becomes the faster one.
        left_out: one sentence per reason why cells do not count, or not fully.
    """

    table: str
    measure: SpeedMeasure
    groups: tuple[ComparedGroup, ...]
    effects: AxisEffects
    crossings: tuple[Crossing, ...]
    left_out: tuple[str, ...]


def compare_campaign(
    path: Path, per: Sequence[str] = (), baseline: Mapping[str, str] | None = None
) -> CampaignComparison:
    """Compare the setups of a campaign.

    Args:
        path: folder of the campaign, or its `results.parquet` or `results.csv`.
        per: axes whose values the setups of a group share. By default this is the scenario, or
            none if no scenario has two setups.
        baseline: values of axes that the baseline of every group has; by default the baseline is
            the first setup of the group.

    Raises:
        InputError: the table cannot be read, or an axis or a value is not in it.

    Examples:
        >>> compared = compare_campaign(Path("runs/campaigns/sweep"))
        >>> [group.fastest for group in compared.groups]
        ['strategy=local_sgd steps=8, rate=100mbit']
        >>> round(compared.groups[0].setups[1].effects["speedup"].value.mean, 1)
        2.0
    """
    table = load_results(path)
    grouped = group_setups(table, per, baseline)
    setups = [setup for group in grouped.groups for setup in group.setups]
    measure = choose_measure(table.rows)
    return CampaignComparison(
        str(table.path),
        measure,
        tuple(compare_group(group, measure) for group in grouped.groups),
        estimate_axis_effects(setups, table.axes, measure),
        find_crossings(setups, table.axes, measure),
        (*table.left_out, *grouped.left_out, *describe_time_limits(table.rows)),
    )


def parse_baseline(pairs: Sequence[str]) -> dict[str, str]:
    """Parse values of axes as the command line gives them: `workload.strategy=allreduce`.

    Raises:
        InputError: a text has no equals sign.
    """
    baseline = {}
    for text in pairs:
        axis, equals, value = text.partition("=")
        if not equals:
            raise InputError(
                f"--baseline {text}: not a value of an axis — give AXIS=VALUE, such as"
                " workload.strategy=allreduce"
            )
        baseline[axis] = value
    return baseline


def to_campaign_document(compared: CampaignComparison) -> dict[str, JsonValue]:
    """Return the comparison as a JSON document."""
    return asdict(compared)
