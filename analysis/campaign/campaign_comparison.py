"""Comparison of a campaign's setups: entry point and JSON document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from laggard.analysis.campaign.axis_effects import AxisEffects, estimate_axis_effects
from laggard.analysis.campaign.result_table import load_results
from laggard.analysis.campaign.setup_effects import ComparedGroup, compare_group
from laggard.analysis.campaign.setups import group_setups
from laggard.core.errors import InputError

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


@dataclass(frozen=True)
class CampaignComparison:
    """Comparison of all setups of a campaign.

    Attributes:
        table: path of the table.
        groups: setups that were compared with each other.
        effects: effects of axes and pairs on the makespan, over all groups.
        left_out: one sentence per status of cells that are not done.
    """

    table: str
    groups: tuple[ComparedGroup, ...]
    effects: AxisEffects
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
    groups = group_setups(table, per, baseline)
    setups = [setup for group in groups for setup in group.setups]
    return CampaignComparison(
        str(table.path),
        tuple(compare_group(group) for group in groups),
        estimate_axis_effects(setups, table.axes),
        table.left_out,
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
