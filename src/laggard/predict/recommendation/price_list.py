"""Machines that can be had, with their prices: a CSV with SkyPilot's columns, or Grid'5000's nodes.

SkyPilot's catalogs (https://github.com/skypilot-org/skypilot-catalog) have the columns
`InstanceType`, `vCPUs`, `MemoryGiB`, `Price`, `SpotPrice`, `Region`, `AvailabilityZone`,
`AcceleratorName` and `AcceleratorCount`; the first four are enough here.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded
from laggard.core.text.text_format import format_count

MAX_BYTES = 64 << 20
MAX_INSTANCES = 500
"""Largest number of types of machines that are compared."""

_NEEDED = ("InstanceType", "vCPUs", "MemoryGiB")
_EXAMPLE = (
    "write InstanceType,vCPUs,MemoryGiB,Price in the first line, and c5.large,2,4,0.085 below"
)
_FAMILY = re.compile(r"[^.-]+")
_THREADS_OF_CORE = 2
"""A vCPU is a hardware thread, of which a core has two."""


@dataclass(frozen=True)
class Instance:
    """Type of machines that can be had.

    Attributes:
        name: name of the type.
        cores: physical cores.
        memory_gib: memory.
        price: price of one machine for an hour.
        family: types with the same processors share it.
        place: region or site of this price; empty if none is named.
        accelerator: name and number of accelerators; empty if there are none.
        most: number of machines that there are; None if it is not known.
    """

    name: str
    cores: float
    memory_gib: float
    price: float
    family: str
    place: str = ""
    accelerator: str = ""
    most: int | None = None


@dataclass(frozen=True)
class PriceList:
    """Machines that can be had.

    Attributes:
        instances: types of machines, each with one price.
        other_price: price of an hour of every other host of a scenario; None if the scenario says.
        unit: unit of prices; empty if the list names none.
        notes: sentences about rows that were left out.
    """

    instances: tuple[Instance, ...]
    other_price: float | None = None
    unit: str = ""
    notes: tuple[str, ...] = ()


def read_price_list(path: Path, region: str | None = None, *, spot: bool = False) -> PriceList:
    r"""Read a CSV with SkyPilot's columns.

    Of the zones of a region the cheapest counts. A row without a positive price is left out.

    Args:
        path: the file.
        region: the region whose prices count; every region if None.
        spot: take the prices of machines that may be revoked.

    Raises:
        InputError: the file is no price list, or a type has different prices in several regions.

    Examples:
        >>> _ = Path("prices.csv").write_text(
        ...     "InstanceType,vCPUs,MemoryGiB,Price\nc5.large,2,4,0.085\n"
        ... )
        >>> read_price_list(Path("prices.csv")).instances[0].price
        0.085
    """
    data = read_bounded(path, MAX_BYTES)
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig")), strict=True)
        column = "SpotPrice" if spot else "Price"
        missing = {*_NEEDED, column} - {*(rows.fieldnames or [])}
        if missing:
            raise InputError(f"{path}:1: has no column {', '.join(sorted(missing))} — {_EXAMPLE}")
        read = [_parse_row(row, column, f"{path}:{rows.line_num}") for row in rows]
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 ({error.reason}) — {_EXAMPLE}") from error
    except csv.Error as error:
        raise InputError(f"{path}: is no CSV file ({error}) — {_EXAMPLE}") from error
    here = [each for each in read if region in (None, _region(each))]
    if not here:
        known = ", ".join(sorted({_region(each) for each in read})) or "none"
        raise InputError(f"{path}: has no prices in {region} — its regions are {known}")
    return _choose_prices(here, path)


def list_grid5000_prices(site: str | None = None) -> PriceList:
    """Return the nodes of Grid'5000's clusters, each at one node-hour an hour.

    Nodes with GPUs count by their processors. How many nodes are free, only a reservation knows.

    Args:
        site: the site whose nodes count; every site if None.

    Raises:
        InputError: there is no such site.

    Examples:
        >>> list_grid5000_prices("rennes").unit
        'node-hours'
    """
    nodes = tuple(_list_grid5000_nodes())
    here = tuple(each for each in nodes if site in (None, each.place))
    if not here:
        known = ", ".join(sorted({each.place for each in nodes}))
        raise InputError(f"--region {site}: is no site of Grid'5000 — its sites are {known}")
    return PriceList(here, other_price=1.0, unit="node-hours")


def keep_known_speeds(prices: PriceList, speeds: Mapping[str, float]) -> PriceList:
    """Leave out machines with accelerators, whose speed this machine's cores do not tell.

    Args:
        prices: machines that can be had.
        speeds: speed of types, in cores of this machine, where it is known.

    Raises:
        InputError: a speed is of a type that is not in the list, or no type is left.
    """
    names = {each.name for each in prices.instances}
    unknown = next((name for name in speeds if name not in names), None)
    if unknown is not None:
        raise InputError(
            f"--speed {unknown}: is no type of the price list — one of its types is {min(names)}"
        )
    kept = tuple(each for each in prices.instances if not each.accelerator or each.name in speeds)
    left_out = sorted(names - {each.name for each in kept})
    if not kept:
        raise InputError(
            f"{_shorten(left_out)}: the speed of accelerators is not known — give it in cores of"
            f" this machine, for example --speed {left_out[0]}=40"
        )
    if not left_out:
        return prices
    note = (
        f"{format_count(len(left_out), 'type')} with accelerators left out, whose speed is not"
        f" given with --speed: {_shorten(left_out)}"
    )
    return replace(prices, instances=kept, notes=(*prices.notes, note))


def _region(instance: Instance) -> str:
    return instance.place.partition("/")[0]


def _list_grid5000_nodes() -> Iterator[Instance]:
    from laggard.layers_services.g5k.reference import load_reference

    for cluster in load_reference().clusters:
        if cluster.exotic:
            continue
        # A cluster whose nodes differ counts by its smallest ones.
        yield Instance(
            name=cluster.name,
            cores=min(each.cores for each in cluster.hardware),
            memory_gib=min(each.memory_gib for each in cluster.hardware),
            price=1.0,
            family=cluster.hardware[0].cpu,
            place=cluster.site,
            most=cluster.nodes,
        )


def _parse_row(
    row: Mapping[str | None, str | list[str] | None], price: str, where: str
) -> Instance:
    def read(column: str) -> str:
        value = row.get(column) or ""
        if None in row or not isinstance(value, str):
            raise InputError(f"{where}: has not the columns of the first line — {_EXAMPLE}")
        return value.strip()

    def read_number(column: str) -> float:
        text = read(column) or "0"
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise InputError(
                f"{where}: {column} is {text}, and must be a number of at least 0 — {_EXAMPLE}"
            )
        return value

    name, family = read("InstanceType"), _FAMILY.match(read("InstanceType"))
    count, accelerator = read_number("AcceleratorCount"), read("AcceleratorName")
    return Instance(
        name=name,
        cores=read_number("vCPUs") / _THREADS_OF_CORE,
        memory_gib=read_number("MemoryGiB"),
        price=read_number(price),
        family=family[0] if family else name,
        place="/".join(filter(None, (read("Region"), read("AvailabilityZone")))),
        accelerator=f"{count:g} x {accelerator}" if accelerator else "",
    )


def _choose_prices(read: Iterable[Instance], path: Path) -> PriceList:
    """Leave out what has no price or no processor, and take one price of each type."""
    usable: dict[str, Instance] = {}
    left_out: dict[str, set[str]] = {"no price": set(), "no processor or memory": set()}
    for each in read:
        if not each.price:
            left_out["no price"].add(each.name)
        elif not (each.name and each.cores and each.memory_gib):
            left_out["no processor or memory"].add(each.name or "a type without a name")
        elif each.name not in usable:
            usable[each.name] = each
        else:
            usable[each.name] = _choose_cheaper(usable[each.name], each, path)
    if not usable:
        raise InputError(f"{path}: no type has a price — fill the column, or leave out --spot")
    if len(usable) > MAX_INSTANCES:
        raise InputError(
            f"{path}: has {len(usable)} types, and at most {MAX_INSTANCES} are compared — leave out"
            " what is out of question"
        )
    notes = tuple(
        f"{format_count(len(names - {*usable}), 'type')} with {why} left out:"
        f" {_shorten(sorted(names - {*usable}))}"
        for why, names in left_out.items()
        if names - {*usable}
    )
    return PriceList(tuple(usable.values()), notes=notes)


def _choose_cheaper(one: Instance, other: Instance, path: Path) -> Instance:
    if _region(one) != _region(other) and one.price != other.price:
        raise InputError(
            f"{path}: {one.name} costs {one.price:g} in {_region(one) or 'no region'} and"
            f" {other.price:g} in {_region(other) or 'no region'} — choose one of them, for example"
            f" with --region {_region(one) or _region(other)}"
        )
    return other if other.price < one.price else one


def _shorten(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"
