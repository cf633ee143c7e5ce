"""Topology of a machine's devices, or of the hosts of a run.

A machine's is hwloc's XML, the matrix of `nvidia-smi topo -m`, or a CSV.

hwloc (`lstopo machine.xml`) writes a matrix `NVLinkBandwidth`, in MB/s. The matrix of nvidia-smi
has the number of NVLinks (`NV2`), or the kind of the path over PCIe. A CSV has the names of the
devices in its first line, and a line of rates in GB/s for each.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MAX_BYTES = 16 << 20
_MBPS_IN_GB_PER_S = 8000.0
MAX_DEVICES = 1024

NVLINK_GB_PER_S = 25.0
"""One NVLink of the second generation in one direction (NVIDIA, *Tesla V100 GPU architecture*,
2017, page 21)."""

PCIE_GB_PER_S = {"PIX": 12.0, "PXB": 11.0, "PHB": 10.0, "NODE": 9.0, "SYS": 6.0, "SOC": 6.0}
"""Usual rates of paths over sixteen lanes of PCIe 3, whose limit is 15.75 GB/s: within a switch,
over several switches, a host bridge, several bridges of a node, and between processors."""


@dataclass(frozen=True)
class DeviceTopology:
    """Rates between the devices of a machine, or between hosts.

    Attributes:
        names: name of each device.
        rates_gb_per_s: rate from each device to each other; 0 if there is no link, [N, N].
        notes: sentences about what is assumed.
    """

    names: tuple[str, ...]
    rates_gb_per_s: FloatArray
    notes: tuple[str, ...] = ()


def read_topology(path: Path) -> DeviceTopology:
    """Read a topology.

    Args:
        path: file, or folder of a run.

    Raises:
        InputError: the file is missing, or has no rates between devices.
    """
    if path.is_dir():
        found = _read_run(path)
        _require_rates(path, found)
        return found
    data = read_bounded(path, MAX_BYTES)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not text in UTF-8 — give a topology") from error
    if text.lstrip().startswith("<"):
        found = _read_hwloc(path, text)
    elif path.suffix.lower() == ".csv":
        found = _read_csv(path, text)
    else:
        found = _read_nvidia(path, text)
    _require_rates(path, found)
    return found


def _require_rates(path: Path, found: DeviceTopology) -> None:
    rates = found.rates_gb_per_s
    if not 2 <= len(found.names) <= MAX_DEVICES:
        raise InputError(
            f"{path}: has {len(found.names)} devices — give a topology of 2 to {MAX_DEVICES}"
        )
    if len({*found.names}) < len(found.names):
        raise InputError(f"{path}: two devices have the same name — rename one")
    if not (np.isfinite(rates).all() and (rates >= 0).all()):
        raise InputError(f"{path}: a rate is negative or not finite — give rates of at least 0")


def _read_run(folder: Path) -> DeviceTopology:
    """Return the rates between the hosts of a run, measured where the run has measured them."""
    from laggard.run_folder.fidelity_checks import load_fidelity
    from laggard.scenario.load import load_scenario

    if not (folder / "scenario").is_dir():
        raise InputError(f"{folder}: is no folder of a run — give one, or the file of a topology")
    scenario = load_scenario(folder / "scenario")
    names = [host.name for host in scenario.hosts]
    checks = {
        (each.src, each.dst): each.measured
        for each in load_fidelity(folder)
        if each.kind == "rate" and each.dst is not None
    }
    rates = np.zeros((len(names), len(names)))
    planned = 0
    for here, src in enumerate(names):
        for there, dst in enumerate(names):
            measured = checks.get((src, dst))
            planned += src != dst and measured is None
            rate = scenario.links.expected(src, dst).rate_mbps if measured is None else measured
            rates[here, there] = np.inf if rate is None else rate / _MBPS_IN_GB_PER_S
    np.fill_diagonal(rates, 0.0)
    notes = [f"{planned} of {len(names) * (len(names) - 1)} links were not measured: as planned"]
    unlimited = np.isinf(rates)
    if unlimited.any():
        limited = rates[(rates > 0) & ~unlimited]
        # Any rate above all others gives the same rings.
        rates[unlimited] = 2 * limited.max() if len(limited) else 1.0
        notes.append(
            "a link without a limit counts as twice as fast as the fastest one with a limit"
        )
    return DeviceTopology(tuple(names), rates, tuple(notes))


def _read_hwloc(path: Path, text: str) -> DeviceTopology:
    from xml.etree import ElementTree as ET

    # Entities are what makes XML dangerous, and hwloc writes none.
    if "<!ENTITY" in text:
        raise InputError(f"{path}: defines XML entities, which hwloc does not — export it again")
    try:
        root = ET.fromstring(text)  # noqa: S314, since entities are refused
    except ET.ParseError as error:
        raise InputError(f"{path}: is not XML: {error} — export it again with lstopo") from error
    for matrix in (*root.iter("distances2hetero"), *root.iter("distances2")):
        if matrix.get("name") == "NVLinkBandwidth":
            return _parse_matrix(path, root, matrix)
    raise InputError(
        f"{path}: has no matrix NVLinkBandwidth — export it on a machine whose hwloc knows NVML, or"
        " give the output of nvidia-smi topo -m"
    )


def _parse_matrix(path: Path, root: Element, matrix: Element) -> DeviceTopology:
    names = _join(matrix, "indexes").split()
    numbers = _join(matrix, "u64values").split()
    if len(numbers) != len(names) ** 2 or not all(
        each.isascii() and each.isdigit() for each in numbers
    ):
        raise InputError(
            f"{path}: NVLinkBandwidth has {len(numbers)} numbers for {len(names)} objects — export"
            " it again"
        )
    rates = np.array([float(each) / 1e3 for each in numbers]).reshape(len(names), len(names))
    devices = [place for place, name in enumerate(names) if name.startswith("OSDev:")]
    titles = {each.get("gp_index"): each.get("name") for each in root.iter("object")}
    shown = tuple(titles.get(names[each].partition(":")[2]) or names[each] for each in devices)
    chosen = rates[np.ix_(devices, devices)]
    np.fill_diagonal(chosen, 0.0)
    return DeviceTopology(shown, chosen)


def _join(matrix: Element, tag: str) -> str:
    return " ".join(each.text or "" for each in matrix.iter(tag))


def _read_nvidia(path: Path, text: str) -> DeviceTopology:
    rows = [line.split() for line in text.splitlines()]
    header = next((row for row in rows if row and row[0].startswith("GPU")), None)
    if header is None:
        raise InputError(
            f"{path}: has no line of GPU0, GPU1 and so on — give hwloc's XML, the output of"
            " nvidia-smi topo -m, or a CSV"
        )
    names = [each for each in header if re.fullmatch(r"GPU\d+", each)]
    cells = {row[0]: row[1:] for row in rows if row and row is not header}
    missing = next((name for name in names if len(cells.get(name, ())) < len(names)), None)
    if missing is not None:
        raise InputError(f"{path}: the line of {missing} is missing or too short — copy all of it")
    rates = np.zeros((len(names), len(names)))
    assumed: set[str] = set()
    for here, name in enumerate(names):
        for there, cell in enumerate(cells[name][: len(names)]):
            if here != there:
                rates[here, there] = _parse_path(path, name, cell)
                assumed |= {cell} & PCIE_GB_PER_S.keys()
    notes = [f"{NVLINK_GB_PER_S:g} GB/s are assumed for an NVLink"]
    notes += [
        f"{PCIE_GB_PER_S[each]:g} GB/s are assumed for a path {each}" for each in sorted(assumed)
    ]
    return DeviceTopology(tuple(names), rates, tuple(notes))


def _parse_path(path: Path, name: str, cell: str) -> float:
    links = re.fullmatch(r"NV(\d{1,3})", cell)
    if links is not None:
        return NVLINK_GB_PER_S * int(links[1])
    if cell not in PCIE_GB_PER_S:
        raise InputError(
            f"{path}: {name}: {cell} is no path — use NV and a number, or one of"
            f" {', '.join(PCIE_GB_PER_S)}"
        )
    return PCIE_GB_PER_S[cell]


def _read_csv(path: Path, text: str) -> DeviceTopology:
    rows = [row for row in csv.reader(io.StringIO(text)) if row]
    if not rows or any(len(row) != len(rows[0]) for row in rows) or len(rows) != len(rows[0]) + 1:
        raise InputError(
            f"{path}: is no square of rates below a line of names — write as many lines of rates as"
            " there are names"
        )
    rates = np.array([[*_parse_rates(path, row)] for row in rows[1:]])
    return DeviceTopology(tuple(each.strip() for each in rows[0]), rates)


def _parse_rates(path: Path, row: Sequence[str]) -> Iterator[float]:
    for cell in row:
        try:
            rate = float(cell)
        except ValueError as error:
            raise InputError(f"{path}: {cell}: is no rate — give GB/s") from error
        yield rate if math.isfinite(rate) else -1.0
