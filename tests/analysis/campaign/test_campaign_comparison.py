"""Comparison of a campaign: effects that were put into its table are found again."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from laggard.analysis.campaign.axis_values import rank_values
from laggard.analysis.campaign.campaign_comparison import compare_campaign, parse_baseline
from laggard.analysis.campaign.comparison_text import format_campaign, format_probability
from laggard.analysis.campaign.effect_figure import draw_interaction, save_campaign_figure
from laggard.analysis.campaign.setups import format_value, format_values
from laggard.core.errors import InputError
from tests.analysis.campaign_tables import TableSpec, generate_rows, make_cell, write_results

RATE = "network.networks.0.rate"
SLOW_ALLREDUCE = {"workload.strategy": "allreduce", RATE: "20mbit"}


@pytest.mark.parametrize("repeats", [3, 8])
def test_effects_of_a_table_are_found_again(repeats: int, tmp_path: Path) -> None:
    folder = write_results(tmp_path, generate_rows(TableSpec(repeats=repeats, noise=0.02)))
    (group,) = compare_campaign(folder).groups
    assert group.name == "fog"
    first, *others = group.setups
    assert first.effects == {}
    for setup, true in zip(others, (2.0, 2.0, 4.0), strict=True):
        speedup = setup.effects["speedup"]
        assert speedup.method == ("paired Student" if repeats < 6 else "paired bootstrap")
        assert speedup.value.low is not None
        assert speedup.value.high is not None
        assert 0.85 * true < speedup.value.low <= speedup.value.mean < 1.1 * true
        assert setup.effects["cost_ratio"].value.mean == pytest.approx(1.0)
        assert abs(setup.effects["accuracy"].value.mean) < 0.03
    assert group.fastest == "strategy=local_sgd steps=8, rate=100mbit"
    assert sum(setup.best or 0.0 for setup in group.setups) == pytest.approx(1.0)
    assert group.setups[-1].best == pytest.approx(1.0, abs=0.01)
    assert group.power is not None
    assert group.power.is_paired
    assert group.power.repeats is not None
    assert group.power.repeats <= 3


def test_pairs_of_seeds_narrow_the_intervals(tmp_path: Path) -> None:
    reach = []
    for paired in (True, False):
        spec = TableSpec(repeats=4, seed_spread=0.3, paired=paired)
        folder = write_results(tmp_path / str(paired), generate_rows(spec))
        speedup = compare_campaign(folder).groups[0].setups[1].effects["speedup"]
        assert speedup.method == ("paired Student" if paired else "Welch")
        assert speedup.value.low is not None
        assert speedup.value.high is not None
        reach.append(speedup.value.high / speedup.value.low)
    assert reach[0] < reach[1]


def test_the_order_of_rows_changes_no_number(tmp_path: Path) -> None:
    rows = generate_rows(TableSpec(scenarios=("fog", "cloud"), repeats=6))
    one = compare_campaign(write_results(tmp_path / "a", rows), baseline=SLOW_ALLREDUCE)
    random.Random(1).shuffle(rows)
    other = compare_campaign(write_results(tmp_path / "b", rows), baseline=SLOW_ALLREDUCE)
    for group in one.groups:
        (same,) = (each for each in other.groups if each.name == group.name)
        assert same.fastest == group.fastest
        by_name = {setup.name: setup for setup in same.setups}
        for setup in group.setups:
            assert by_name[setup.name].effects == setup.effects
            assert by_name[setup.name].best == pytest.approx(setup.best, abs=0.02)


def test_the_parts_of_a_complete_product_add_up(tmp_path: Path) -> None:
    folder = write_results(tmp_path, generate_rows(TableSpec(interaction=1.5, noise=0.0)))
    effects = compare_campaign(folder).effects
    assert effects.is_complete
    assert [effect.axes for effect in effects.axes] == [("workload.strategy",), (RATE,)]
    (pair,) = effects.pairs
    shares = [effect.share or 0.0 for effect in (*effects.axes, pair)]
    assert sum(shares) == pytest.approx(1.0)
    # The factor 1.5 of one cell of four is 1.5^(1/4) of every cell's interaction.
    assert {round(max(each.ratio, 1 / each.ratio), 6) for each in pair.values} == {
        round(1.5**0.25, 6)
    }


def test_axes_that_multiply_do_not_interact(tmp_path: Path) -> None:
    effects = compare_campaign(write_results(tmp_path, generate_rows(TableSpec(noise=0.0)))).effects
    assert effects.pairs[0].share == pytest.approx(0.0, abs=1e-9)
    assert all(each.ratio == pytest.approx(1.0) for each in effects.pairs[0].values)


def test_a_missing_combination_leaves_no_shares(tmp_path: Path) -> None:
    rows = generate_rows(TableSpec(repeats=3))[:-3]
    compared = compare_campaign(write_results(tmp_path, rows))
    assert not compared.effects.is_complete
    assert {effect.share for effect in (*compared.effects.axes, *compared.effects.pairs)} == {None}
    assert "some combinations of values are missing" in format_campaign(compared)


def test_scenarios_of_one_setup_each_are_compared_with_each_other(tmp_path: Path) -> None:
    rows = [
        make_cell(10 * n + seed, scenario=name, seed=seed, makespan_s=(5.0 + n) * (1 + seed / 50))
        for n, name in enumerate(("fog", "cloud"))
        for seed in range(3)
    ]
    (group,) = compare_campaign(write_results(tmp_path, rows)).groups
    assert (group.name, [setup.name for setup in group.setups]) == ("", ["fog", "cloud"])
    assert group.setups[1].effects["speedup"].value.mean == pytest.approx(5 / 6)


def test_groups_and_baselines_are_chosen(tmp_path: Path) -> None:
    folder = write_results(tmp_path, generate_rows(TableSpec(scenarios=("fog", "cloud"))))
    compared = compare_campaign(folder, per=[RATE], baseline={"scenario": "cloud"})
    assert [group.name for group in compared.groups] == ["rate=20mbit", "rate=100mbit"]
    assert [group.setups[0].name for group in compared.groups] == ["cloud, strategy=allreduce"] * 2
    named = compare_campaign(folder, baseline=parse_baseline([f"{RATE}=100mbit"]))
    assert {group.setups[0].values[RATE] for group in named.groups} == {"100mbit"}


def test_a_group_without_the_baseline_is_left_out_and_named(tmp_path: Path) -> None:
    rows = generate_rows(TableSpec(scenarios=("fog", "cloud")))
    kept = [row for row in rows if (row["scenario"], row[RATE]) != ("cloud", "100mbit")]
    compared = compare_campaign(
        write_results(tmp_path, kept), per=["scenario"], baseline={RATE: "100mbit"}
    )
    assert [group.name for group in compared.groups] == ["fog"]
    assert compared.left_out[-1] == "cloud: left out, because no run with rate=100mbit counts"


@pytest.mark.parametrize(
    ("values", "ordered"),
    [
        (
            ["weak 16", "strong 4", "weak 4", "strong 32"],
            ["strong 4", "strong 32", "weak 4", "weak 16"],
        ),
        (["hop", "allreduce"], ["hop", "allreduce"]),
        (["mlp", "resnet18", "resnet8"], ["mlp", "resnet18", "resnet8"]),
        (["100mbit", "20mbit"], ["20mbit", "100mbit"]),
    ],
)
def test_values_have_an_order_that_does_not_depend_on_the_table(
    values: list[str], ordered: list[str]
) -> None:
    ranks = rank_values("axis", values)
    assert sorted(values, key=ranks.__getitem__) == ordered


@pytest.mark.parametrize(
    ("per", "baseline", "message"),
    [
        (["rate"], {}, "rate: not an axis of .* give one of these: scenario, workload.strategy"),
        ([], {"rate": "1"}, "rate: not an axis"),
        ([], {RATE: "5mbit"}, "rate=5mbit: no setup .* give some of .*: 100mbit, 20mbit"),
    ],
)
def test_wrong_axes_and_values_are_refused(
    per: list[str], baseline: dict[str, str], message: str, tmp_path: Path
) -> None:
    folder = write_results(tmp_path, generate_rows(TableSpec(repeats=1)))
    with pytest.raises(InputError, match=message):
        compare_campaign(folder, per, baseline)


def test_one_repeat_has_no_interval_and_says_so(tmp_path: Path) -> None:
    compared = compare_campaign(write_results(tmp_path, generate_rows(TableSpec(repeats=1))))
    (group,) = compared.groups
    assert (group.power, group.setups[0].best) == (None, None)
    said = format_campaign(compared)
    assert "one repeat has no interval" in said
    assert "without two repeats of each setup, this may be chance" in said


def test_keys_that_follow_from_the_variant_are_no_axes(tmp_path: Path) -> None:
    rows = [
        make_cell(10 * n + seed, variant=name, seed=seed, **{"a.b": n, "a.c": 1})
        for n, name in enumerate(("small", "large"))
        for seed in range(2)
    ]
    (group,) = compare_campaign(write_results(tmp_path, rows)).groups
    assert [setup.name for setup in group.setups] == ["small", "large"]


@pytest.mark.parametrize("suffix", ["svg", "png"])
@pytest.mark.parametrize("repeats", [1, 3])
def test_figures_are_written(suffix: str, repeats: int, tmp_path: Path) -> None:
    folder = write_results(tmp_path, generate_rows(TableSpec(repeats=repeats)))
    path = tmp_path / f"effects.{suffix}"
    save_campaign_figure(compare_campaign(folder), path)
    start = b"<?xml" if suffix == "svg" else b"\x89PNG"
    assert path.read_bytes().startswith(start)


def test_other_figures_and_pairs_are_refused(tmp_path: Path) -> None:
    compared = compare_campaign(write_results(tmp_path, generate_rows(TableSpec(repeats=1))))
    with pytest.raises(InputError, match=r"end in \.svg or \.png"):
        save_campaign_figure(compared, tmp_path / "effects.pdf")
    with pytest.raises(InputError, match="not two axes"):
        draw_interaction(compared, ("a", "b"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("allreduce", "allreduce"),
        ('{"name": "hop", "steps": 2}', "hop steps=2"),
        ('{"a": 1}', "a=1"),
        ("{broken", "{broken"),
        ("x" * 50, "x" * 39 + "…"),
    ],
)
def test_values_are_shown_short(text: str, shown: str) -> None:
    assert format_value(text) == shown


def test_keys_are_shown_by_their_last_parts_if_these_differ() -> None:
    assert format_values({"a.rate": "1", "b.rate": "2"}) == "a.rate=1, b.rate=2"
    assert format_values({"a.rate": "1", "scenario": "fog"}) == "rate=1, fog"


@pytest.mark.parametrize(
    ("share", "shown"), [(1.0, "over 99 %"), (0.0, "under 1 %"), (0.42, "42 %")]
)
def test_no_estimated_probability_is_certain(share: float, shown: str) -> None:
    assert format_probability(share) == shown
