"""Numbers of workers on the command line, and the scenarios that they make."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import InputError
from laggard.predict.worker_numbers import load_with_numbers, parse_worker_numbers
from tests.predict.scenario_folder import write_scenario


@pytest.mark.parametrize(
    ("text", "tier", "numbers"),
    [
        ("1..4", None, (1, 2, 3, 4)),
        ("edge=2..2", "edge", (2,)),
        ("edge=8,4,4", "edge", (4, 8)),
        ("edge.trainer=3", "edge.trainer", (3,)),
    ],
)
def test_numbers(text: str, tier: str | None, numbers: tuple[int, ...]) -> None:
    found = parse_worker_numbers(text)
    assert (found.tier, found.numbers) == (tier, numbers)


def test_a_long_range_is_tried_at_twelve_numbers_with_both_ends() -> None:
    numbers = parse_worker_numbers("edge=1..512").numbers
    assert len(numbers) <= 12
    assert (numbers[0], numbers[-1]) == (1, 512)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "edge",
        "edge=",
        "edge=x",
        "0",
        "edge=513",
        "8..4",
        "edge=1.5",
        "edge=1..",
        "-1",
        "1,,2",
        "9" * 400,
        "edge=²",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--workers"):
        parse_worker_numbers(text)


def test_scenarios_have_the_numbers(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path)
    found = list(load_with_numbers(folder, [], parse_worker_numbers("edge=2,5")))
    assert [len(each.ranks) for each in found] == [2, 5]
    assert {each.workload.batch_size for each in found} == {64}


def test_a_batch_grows_with_the_workers(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path)
    found = list(load_with_numbers(folder, [], parse_worker_numbers("2,5"), samples=16))
    assert [each.workload.batch_size for each in found] == [32, 80]


def test_a_service_must_be_named_if_there_are_several(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path, workload={"placement": {"workers": ["edge.*", "cloud.*"]}})
    with pytest.raises(InputError, match=r"--workers edge\.trainer=1\.\.16"):
        list(load_with_numbers(folder, [], parse_worker_numbers("1..4")))
    with pytest.raises(InputError, match="fog"):
        list(load_with_numbers(folder, [], parse_worker_numbers("fog=1..4")))
    assert len(list(load_with_numbers(folder, [], parse_worker_numbers("edge=2..5")))) == 4
