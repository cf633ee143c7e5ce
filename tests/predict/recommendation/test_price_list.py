"""Price lists: SkyPilot's columns, and Grid'5000's nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import InputError
from laggard.predict.recommendation.price_list import (
    keep_known_speeds,
    list_grid5000_prices,
    read_price_list,
)

HEADER = (
    "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,SpotPrice,Region,"
    "AvailabilityZone"
)


def write(folder: Path, *rows: str, header: str = HEADER) -> Path:
    path = folder / "prices.csv"
    path.write_text("\n".join((header, *rows, "")))
    return path


def test_a_row_becomes_a_type(tmp_path: Path) -> None:
    path = write(tmp_path, "c5.xlarge,,,4,8,0.17,0.06,us-east-1,us-east-1a")
    (found,) = read_price_list(path).instances
    assert (found.name, found.family, found.cores) == ("c5.xlarge", "c5", 2.0)
    assert (found.memory_gib, found.price, found.place) == (8.0, 0.17, "us-east-1/us-east-1a")
    (spot,) = read_price_list(path, spot=True).instances
    assert spot.price == 0.06


def test_four_columns_are_enough(tmp_path: Path) -> None:
    path = write(tmp_path, "small,2,4,0.1", header="InstanceType,vCPUs,MemoryGiB,Price")
    (found,) = read_price_list(path).instances
    assert (found.family, found.place, found.accelerator) == ("small", "", "")


def test_the_cheapest_zone_of_a_region_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "a,,,2,4,0.2,,r,r-1", "a,,,2,4,0.1,,r,r-2", "a,,,2,4,0.3,,r,r-3")
    (found,) = read_price_list(path).instances
    assert (found.price, found.place) == (0.1, "r/r-2")


def test_prices_in_two_regions_need_a_choice(tmp_path: Path) -> None:
    path = write(tmp_path, "a,,,2,4,0.2,,east,", "a,,,2,4,0.1,,west,")
    with pytest.raises(InputError, match=r"a costs 0.2 in east and 0.1 in west.*--region east"):
        read_price_list(path)
    (found,) = read_price_list(path, "west").instances
    assert found.price == 0.1
    with pytest.raises(InputError, match="no prices in north — its regions are east, west"):
        read_price_list(path, "north")


def test_rows_without_a_price_are_left_out_and_said(tmp_path: Path) -> None:
    path = write(tmp_path, "a,,,2,4,0.2,,r,", "b,,,2,4,0,,r,", "c,,,2,4,,,r,", "d,,,0,4,1,,r,")
    found = read_price_list(path)
    assert [each.name for each in found.instances] == ["a"]
    assert found.notes == (
        "two types with no price left out: b, c",
        "one type with no processor or memory left out: d",
    )
    with pytest.raises(InputError, match="no type has a price"):
        read_price_list(path, spot=True)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no column"),
        (b"InstanceType,vCPUs\na,2\n", "has no column MemoryGiB, Price"),
        (b"InstanceType,vCPUs,MemoryGiB,Price\na,2,4,cheap\n", "Price is cheap"),
        (b"InstanceType,vCPUs,MemoryGiB,Price\na,2,4,-1\n", "Price is -1"),
        (b"InstanceType,vCPUs,MemoryGiB,Price\na,nan,4,1\n", "vCPUs is nan"),
        (b"InstanceType,vCPUs,MemoryGiB,Price\na,inf,4,1\n", "vCPUs is inf"),
        (b"InstanceType,vCPUs,MemoryGiB,Price\na,2,4,1,5\n", "has not the columns"),
        (b"InstanceType,vCPUs,MemoryGiB,Price\n\xff,2,4,1\n", "is not text in UTF-8"),
        (b'InstanceType,vCPUs,MemoryGiB,Price\n"a,2,4,1\n', "is no CSV file"),
        (b"InstanceType,vCPUs,MemoryGiB,Price\n", "has no prices"),
    ],
)
def test_what_is_no_price_list_is_one_message(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "prices.csv"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_price_list(path)


def test_too_many_types_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, *(f"t{number},,,2,4,1,,r," for number in range(501)))
    with pytest.raises(InputError, match="has 501 types"):
        read_price_list(path)


def test_accelerators_need_a_known_speed(tmp_path: Path) -> None:
    path = write(tmp_path, "a,,,2,4,0.2,,r,", "p3,V100,1,8,61,3,,r,")
    prices = read_price_list(path)
    kept = keep_known_speeds(prices, {})
    assert [each.name for each in kept.instances] == ["a"]
    assert kept.notes[-1].endswith("not given with --speed: p3")
    assert keep_known_speeds(prices, {"p3": 40.0}).instances == prices.instances
    with pytest.raises(InputError, match="--speed b: is no type of the price list"):
        keep_known_speeds(prices, {"b": 1.0})
    only = read_price_list(write(tmp_path, "p3,V100,1,8,61,3,,r,"))
    with pytest.raises(InputError, match="--speed p3=40"):
        keep_known_speeds(only, {})


def test_grid5000_counts_nodes_by_the_hour() -> None:
    prices = list_grid5000_prices("rennes")
    assert {each.place for each in prices.instances} == {"rennes"}
    assert {each.price for each in prices.instances} == {1.0}
    assert all(each.cores >= 1 and each.most for each in prices.instances)
    assert prices.unit == "node-hours"
    with pytest.raises(InputError, match=r"is no site of Grid'5000 — its sites are .*rennes"):
        list_grid5000_prices("atlantis")
