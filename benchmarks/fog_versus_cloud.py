"""Training speed with the parameter server in the fog or in the cloud.

    python benchmarks/fog_versus_cloud.py [RUNS] [FIGURE.png]

It compares samples per second by model and by rate of the links to the cloud. It runs what is left
of the campaign `fog_versus_cloud.yaml` beside this file, prints its table, and draws it.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from laggard.analysis.report.style.canvas import WIDE_IN, house_style, new_figure, to_png
from laggard.analysis.report.style.palette import TIERS
from laggard.campaign.campaign_display import CampaignTextDisplay
from laggard.campaign.run_campaign import CampaignOptions, run_campaign

CAMPAIGN = Path(__file__).with_suffix(".yaml")
MODELS = {"cnn": "cnn, 0.15 MB", "wide_mlp": "wide_mlp, 5.4 MB"}
PLACES = {"fog.*": "fog", "cloud.*": "cloud"}

Speeds = dict[tuple[str, float, str], float]


def speeds(table: Path) -> Speeds:
    """Read samples per second from a campaign's table.

    The last run of each combination counts.

    Returns:
        Samples per second by model, Mbit/s to the cloud, and place of the server.
    """
    with table.open(newline="") as file:
        return {
            (
                row["workload.model"],
                float(row["network.networks.0.rate"].removesuffix("mbit")),
                PLACES[row["workload.placement.server"]],
            ): float(row["samples_per_s"])
            for row in csv.DictReader(file)
            if row["status"] == "done"
        }


def markdown(found: Speeds) -> str:
    """Format one row for each model and rate."""
    lines = [
        "| model | edge to cloud | server in the fog | server in the cloud | fog / cloud |",
        "|---|---|---|---|---|",
    ]
    for model, rate in sorted({key[:2] for key in found}):
        fog, cloud = found.get((model, rate, "fog"), 0.0), found.get((model, rate, "cloud"), 0.0)
        ratio = f"{fog / cloud:.2f}" if fog and cloud else ""
        lines.append(
            f"| {MODELS[model]} | {rate:g} Mbit/s | {fog:.0f} samples/s | {cloud:.0f} | {ratio} |"
        )
    return "\n".join(lines)


def draw(found: Speeds) -> bytes:
    """Draw one panel for each model.

    It shows samples per second over the rate to the cloud, one line per place of the server.
    """
    with house_style():
        figure = new_figure(WIDE_IN, 2.9)
        for axes, (model, name) in zip(
            figure.subplots(1, len(MODELS)), MODELS.items(), strict=True
        ):
            for place, color in zip(PLACES.values(), TIERS, strict=False):
                points = sorted(
                    (rate, speed)
                    for (m, rate, p), speed in found.items()
                    if (m, p) == (model, place)
                )
                axes.plot(
                    *zip(*points, strict=True),
                    marker="o",
                    color=color,
                    label=f"server in the {place}",
                )
            axes.set_xscale("log")
            rates = sorted({rate for _, rate, _ in found})
            axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.set_xlabel("edge to cloud, Mbit/s")
            axes.set_ylabel("samples/s")
            axes.set_title(name)
            axes.grid(axis="y")
            axes.legend()
        return to_png(figure)


def main() -> None:
    """Run what is left, print the table and draw it."""
    runs = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs")
    found = speeds(run_campaign(CAMPAIGN, CampaignOptions(runs), CampaignTextDisplay()).table)
    print(markdown(found))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_bytes(draw(found))


if __name__ == "__main__":
    main()
