"""Crossing points that were put into a table are found again, and nothing else is."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.campaign.campaign_comparison import compare_campaign
from laggard.analysis.campaign.comparison_text import format_campaign
from laggard.analysis.campaign.crossings import Crossing
from laggard.analysis.campaign.effect_figure import save_campaign_figure
from tests.analysis.campaign_tables import Cell, make_cell, write_results

RATE = "network.networks.0.rate"
SERVER = "workload.placement.server"
RATES = (20.0, 50.0, 100.0, 200.0, 500.0)


def generate_crossing(
    at: float,
    *,
    slope: float = 1.0,
    noise: float = 0.0,
    repeats: int = 3,
    seed: int = 1,
    model: str = "cnn",
    texts: Sequence[str] = tuple(f"{rate:g}mbit" for rate in RATES),
) -> list[Cell]:
    """A server in the fog always takes 10 s; one in the cloud is faster above a rate."""
    generator = np.random.default_rng(seed)
    rows = []
    for text, rate in zip(texts, RATES, strict=True):
        for place, makespan_s in (("fog.*", 10.0), ("cloud.*", 10.0 * (at / rate) ** slope)):
            for repeat in range(1, repeats + 1):
                measured_s = makespan_s * math.exp(noise * generator.normal())
                rows.append(
                    make_cell(
                        len(rows) + 1000 * len(model),
                        repeat=repeat,
                        seed=repeat,
                        makespan_s=measured_s,
                        samples_per_s=1000 / measured_s,
                        **{"workload.model": model, RATE: text, SERVER: place},
                    )
                )
    return rows


def find(rows: Sequence[Cell], folder: Path) -> tuple[Crossing, ...]:
    return compare_campaign(write_results(folder, rows)).crossings


@pytest.mark.parametrize("at", [21.0, 40.0, 70.0, 333.0, 499.0])
def test_a_crossing_is_found_where_it_is(at: float, tmp_path: Path) -> None:
    """Powers of the axis are straight lines between logarithms, so the place is exact."""
    (crossing,) = find(generate_crossing(at), tmp_path)
    assert (crossing.axis, crossing.unit, crossing.is_logarithmic) == (RATE, "Mbit/s", True)
    assert (crossing.compared, crossing.before, crossing.after) == (SERVER, "fog.*", "cloud.*")
    assert crossing.at.mean == pytest.approx(at)


@pytest.mark.parametrize("at", [5.0, 600.0])
def test_without_a_crossing_none_is_told(at: float, tmp_path: Path) -> None:
    assert find(generate_crossing(at), tmp_path) == ()


def test_each_model_has_a_crossing_of_its_own(tmp_path: Path) -> None:
    rows = generate_crossing(40.0) + generate_crossing(150.0, model="wide_mlp")
    found = {each.shared["workload.model"]: each.at.mean for each in find(rows, tmp_path)}
    assert found == {"cnn": pytest.approx(40.0), "wide_mlp": pytest.approx(150.0)}
    lines = format_campaign(compare_campaign(tmp_path)).splitlines()
    assert (
        "  server=fog.* is faster than server=cloud.* up to rate=40 (40 to 40) Mbit/s (model=cnn)"
        in lines
    )


def test_units_do_not_matter(tmp_path: Path) -> None:
    texts = ("20000kbit", "50mbit", "0.1gbit", "200mbit", "0.5gbit")
    (crossing,) = find(generate_crossing(70.0, texts=texts), tmp_path)
    assert crossing.at.mean == pytest.approx(70.0)
    assert [point.at for point in crossing.points] == pytest.approx(list(RATES))


def test_names_and_few_numbers_are_no_axis_of_a_crossing(tmp_path: Path) -> None:
    assert find(generate_crossing(70.0, texts=("a", "b", "c", "d", "e")), tmp_path / "a") == ()
    rows = [row for row in generate_crossing(70.0) if row[RATE] in {"20mbit", "500mbit"}]
    assert find(rows, tmp_path / "b") == ()


def test_one_repeat_tells_no_crossing(tmp_path: Path) -> None:
    assert find(generate_crossing(70.0, repeats=1), tmp_path) == ()


@pytest.mark.long
def test_the_interval_contains_the_crossing(tmp_path: Path) -> None:
    """Of 200 noisy campaigns, about 95 % have the true value in the interval."""
    at, inside, count = 70.0, 0, 0
    for seed in range(200):
        for crossing in find(generate_crossing(at, noise=0.1, seed=seed), tmp_path / str(seed)):
            assert crossing.at.low is not None
            assert crossing.at.high is not None
            assert crossing.at.low <= crossing.at.mean <= crossing.at.high
            inside += crossing.at.low <= at <= crossing.at.high
            count += 1
    assert count > 150
    assert inside / count > 0.92


def test_runs_of_equal_time_are_compared_by_their_speed(tmp_path: Path) -> None:
    rows = [row | {"makespan_s": 12.0, "stopped_by": "time"} for row in generate_crossing(40.0)]
    compared = compare_campaign(write_results(tmp_path, rows))
    assert compared.measure.column == "samples_per_s"
    (crossing,) = compared.crossings
    assert crossing.before == "fog.*"
    assert crossing.at.mean == pytest.approx(40.0)
    (group,) = compared.groups
    slowest = next(setup for setup in group.setups if "cloud" in setup.name)
    assert slowest.effects["speedup"].value.mean == pytest.approx(0.5)
    assert group.fastest is not None
    assert "cloud" in group.fastest
    text = format_campaign(compared)
    assert "speed 100 (100 to 100) samples/s" in text
    assert "makespan" not in text


def test_a_part_that_was_ended_by_time_is_told(tmp_path: Path) -> None:
    rows = generate_crossing(40.0)
    rows[3] |= {"stopped_by": "time"}
    compared = compare_campaign(write_results(tmp_path, rows))
    assert compared.measure.column == "makespan_s"
    assert "1 of 30 runs were ended by their time limit" in compared.left_out[-1]


def test_a_shuffled_campaign_is_compared_in_order(tmp_path: Path) -> None:
    """Rates by size, and each group has the same baseline."""
    rows = generate_crossing(40.0)
    random.Random(3).shuffle(rows)
    groups = compare_campaign(write_results(tmp_path, rows), per=[RATE]).groups
    assert [group.name for group in groups] == [f"rate={rate:g}mbit" for rate in RATES]
    assert len({group.setups[0].name for group in groups}) == 1


def test_crossings_are_drawn(tmp_path: Path) -> None:
    rows = generate_crossing(40.0) + generate_crossing(150.0, model="wide_mlp")
    compared = compare_campaign(write_results(tmp_path, rows))
    save_campaign_figure(compared, tmp_path / "effects.svg")
    text = (tmp_path / "effects.svg").read_text()
    assert "model=cnn: at rate 40 Mbit/s" in text
