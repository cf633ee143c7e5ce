"""Cells of a campaign: which there are, in which order, and what makes two of them different."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from laggard.campaign.campaign_display import name_cell
from laggard.campaign.campaign_file import CampaignFile, load_campaign
from laggard.campaign.cells import (
    Cell,
    CellSetup,
    CheckedSetup,
    list_cells,
    list_setups,
    make_digest,
)
from laggard.core.errors import InputError
from laggard.core.yaml_source import to_yaml

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abc:#,'\" e1.", max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abe1", max_size=4), inner),
    max_leaves=8,
)  # fmt: skip


def make_campaign(**values: object) -> CampaignFile:
    """A campaign of one scenario."""
    return CampaignFile.model_validate({"scenario": "small", **values})


def make_cells(campaign: CampaignFile, seed: int | None = 3) -> list[Cell]:
    """Its cells, without loading scenarios."""
    setups = [CheckedSetup(s, make_digest(s.label()), seed) for s in list_setups(campaign)]
    return list(list_cells(campaign, setups))


@given(JSON_VALUES)
def test_overrides_mean_the_same_in_both_versions_of_yaml(value: Any) -> None:
    written = to_yaml(value)
    assert yaml.safe_load(written) == value
    assert YAML(typ="safe", pure=True).load(written) == value


@given(st.lists(JSON_VALUES, min_size=2, max_size=2))
def test_values_that_differ_in_yaml_have_different_digests(values: list[Any]) -> None:
    first, second = values
    assert (make_digest(first) == make_digest(second)) == (to_yaml(first) == to_yaml(second)) or (
        # The order of keys does not matter.
        first == second
    )


def test_numbers_texts_and_truths_are_different_values() -> None:
    digests = {make_digest(value) for value in (1, 1.0, True, "1", "true", [1], None, "")}
    assert len(digests) == 8


def test_every_setup_has_every_repeat() -> None:
    campaign = make_campaign(
        repeats=3,
        vary={"workload.batch_size": [1, 2], "workload.model": ["mlp", "cnn"]},
        variants={"slow": {"network.x": 1}, "fast": {"network.x": 2}},
    )
    cells = make_cells(campaign)
    assert len(cells) == len({cell.digest for cell in cells}) == 2 * 2 * 2 * 3
    assert [cell.repeat for cell in cells[:4]] == [0, 1, 2, 0]
    assert cells[0].overrides() == (
        "network.x=1",
        "workload.batch_size=1",
        'workload.model="mlp"',
        "workload.seed=3",
    )


@pytest.mark.parametrize("order", ["grid", "random", "paired"])
def test_orders_have_the_same_cells(order: str) -> None:
    values = {"repeats": 4, "vary": {"workload.batch_size": [1, 2, 3]}}
    cells = make_cells(make_campaign(**values, order=order))
    assert {c.digest for c in cells} == {c.digest for c in make_cells(make_campaign(**values))}
    assert cells == make_cells(make_campaign(**values, order=order))
    if order == "paired":
        assert [cell.repeat for cell in cells] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3


def test_seeds_are_paired_across_setups() -> None:
    cells = make_cells(make_campaign(repeats=2, vary={"workload.batch_size": [1, 2]}))
    assert [(cell.repeat, cell.seed) for cell in cells] == [(0, 3), (1, 4)] * 2
    same = make_cells(make_campaign(repeats=2, seeds="same"))
    assert [(cell.seed, cell.overrides()) for cell in same] == [(3, ())] * 2
    varied = make_cells(make_campaign(repeats=2, vary={"workload.seed": [7]}))
    assert varied[0].overrides() == ("workload.seed=7",)
    assert make_cells(make_campaign(repeats=2), None)[1].seed is None


def test_where_and_exclude_choose_setups() -> None:
    vary = {"a.x": [1, 2, 3], "a.y": ["p", "q"]}

    def chosen(**more: object) -> set[tuple[Any, ...]]:
        setups = list_setups(make_campaign(vary=vary, **more))
        return {tuple(setup.varied.values()) for setup in setups}

    everything = set(itertools.product(*vary.values()))
    assert chosen() == everything
    assert chosen(where=[{"a.x": 1}, {"a.y": "q"}]) == {
        (x, y) for x, y in everything if x == 1 or y == "q"
    }
    assert chosen(exclude=[{"a.x": [1, 2], "a.y": "p"}]) == everything - {(1, "p"), (2, "p")}
    # A text is not a number.
    assert chosen(exclude=[{"a.x": "1"}]) == everything
    with pytest.raises(InputError, match="leave no setup"):
        chosen(where=[{"a.x": 4}])


def test_a_product_too_large_is_refused_with_its_size() -> None:
    vary = {f"workload.k{n}": list(range(20)) for n in range(12)}
    with pytest.raises(InputError, match="4,096,000,000,000,000 cells"):
        list_setups(make_campaign(vary=vary))


BAD_FILES = {
    "misspelt key": ("scenario: small\nrepeat: 2\n", "repeats"),
    "no scenario": ("repeats: 2\n", "scenario"),
    "two kinds of scenario": ("scenario: a\nscenarios: [b]\n", "either"),
    "no repeats": ("scenario: x\nrepeats: 0\n", "repeats"),
    "axis twice": ("scenario: x\nvary:\n  a.b: [1]\n  a.b: [2]\n", "a.b"),
    "axis in axis": ("scenario: x\nvary:\n  a.b: [{c: 1}]\n  a.b.c: [2]\n", "part of a.b"),
    "axis in variant": ("scenario: x\nvary: {a.b: [1]}\nvariants: {v: {a.b: 2}}\n", "variants"),
    "empty axis": ("scenario: x\nvary: {a.b: []}\n", "without values"),
    "unknown axis": ("scenario: x\nvary: {a.b: [1]}\nexclude: [{a.c: 1}]\n", "a.c"),
    "scenario twice": ("scenarios: [x, x]\n", "twice"),
    "bad duration": ("scenario: x\nstop: {time: soon}\n", "soon"),
    "no campaign": ("[]\n", "campaign"),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_what_is_no_campaign_is_refused(tmp_path: Path, case: str) -> None:
    text, says = BAD_FILES[case]
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        load_campaign(path)


def test_a_value_twice_is_refused() -> None:
    with pytest.raises(InputError, match="twice"):
        list_setups(make_campaign(vary={"a.b": [1, 1]}))


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_campaign(tmp_path / "none.yaml")


def test_scenario_is_relative_to_the_file(tmp_path: Path) -> None:
    (tmp_path / "campaign.yaml").write_text("scenarios: [small, ../other]\n")
    campaign = load_campaign(tmp_path / "campaign.yaml")
    assert campaign.folders == (tmp_path / "small", tmp_path.parent / "other")


def test_a_setup_is_known_by_all_its_values() -> None:
    one, other = (CellSetup(Path("/s"), "", {"a.b": value}, {}) for value in (1, True))
    assert one.label() != other.label()


def test_a_cell_is_named_by_the_axes_that_distinguish_it() -> None:
    campaign = make_campaign(
        vary={"workload.model": ["mlp", "cnn"], "workload.batch_size": [64]}, order="grid"
    )
    assert [name_cell(cell) for cell in make_cells(campaign)] == [
        'small · workload.model="mlp" · repeat 0',
        'small · workload.model="cnn" · repeat 0',
    ]
