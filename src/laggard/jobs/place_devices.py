"""Devices of a machine for one job: rings whose slowest link is as fast as possible."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from laggard.core.errors import InputError
from laggard.core.text.text_columns import align_columns
from laggard.core.text.text_format import format_count
from laggard.jobs.topology_file import DeviceTopology
from laggard.workloads.scheduling.ring_placement import RingPlacement, place_ring

if TYPE_CHECKING:
    from pydantic import JsonValue


@dataclass(frozen=True)
class DevicePlacement:
    """Rings of some numbers of devices of a machine.

    Attributes:
        topology: the machine.
        rings: ring of each number of devices; None where the links connect no such ring.
    """

    topology: DeviceTopology
    rings: dict[int, RingPlacement | None]


def place_devices(
    topology: DeviceTopology, sizes: Sequence[int] = (), free: Sequence[str] = ()
) -> DevicePlacement:
    """Choose the devices for jobs of one or several sizes.

    Args:
        topology: rates between the devices.
        sizes: numbers of devices; from two to all free ones if empty.
        free: names of the devices that may be used; all if empty.

    Raises:
        InputError: a device is not one of the machine, or there are too few.

    Examples:
        >>> import numpy as np
        >>> from laggard.jobs.topology_file import DeviceTopology
        >>> rates = np.array([[0, 50, 25], [50, 0, 10], [25, 10, 0]], dtype=float)
        >>> placed = place_devices(DeviceTopology(("a", "b", "c"), rates), sizes=[2])
        >>> placed.rings[2].devices, placed.rings[2].rate
        ((0, 1), 50.0)
    """
    unknown = [name for name in free if name not in topology.names]
    if unknown:
        raise InputError(
            f"{unknown[0]}: is no device of the topology — its devices are"
            f" {', '.join(topology.names)}"
        )
    able = [place for place, name in enumerate(topology.names) if not free or name in free]
    wanted = sizes or range(2, len(able) + 1)
    for size in wanted:
        if not 1 <= size <= len(able):
            raise InputError(
                f"{size} devices, of which {len(able)} are free — give from 1 to {len(able)}"
            )
    return DevicePlacement(topology, {size: _try(topology, size, able) for size in wanted})


def _try(topology: DeviceTopology, size: int, able: Sequence[int]) -> RingPlacement | None:
    try:
        return place_ring(topology.rates_gb_per_s, size, able)
    except InputError:
        return None


def format_placement(placement: DevicePlacement) -> str:
    """Format the rings, one a line."""
    return "\n".join(_format_lines(placement))


def _format_lines(placement: DevicePlacement) -> Iterator[str]:
    names = placement.topology.names
    yield f"{format_count(len(names), 'device')}: rings whose slowest link is fastest"
    rows = [["devices", "slowest link", "ring"]]
    for size, ring in placement.rings.items():
        if ring is None:
            rows.append([str(size), "none", "the links connect no ring of so many devices"])
        else:
            rate = _format_rate(ring.rate) if np.isfinite(ring.rate) else "none needed"
            rows.append([str(size), rate, " ".join(names[each] for each in ring.devices)])
    yield from align_columns(rows)
    yield from (f"note: {note}" for note in list_notes(placement.topology))


def _format_rate(gb_per_s: float) -> str:
    return f"{gb_per_s:g} GB/s" if gb_per_s >= 1 else f"{8000 * gb_per_s:.4g} Mbit/s"


def list_notes(topology: DeviceTopology) -> tuple[str, ...]:
    """Return sentences about what is assumed and what is unusual in a topology."""
    rates = topology.rates_gb_per_s
    uneven = np.argwhere(np.triu(rates != rates.T))
    notes = list(topology.notes)
    if len(uneven):
        here, there = (topology.names[each] for each in uneven[0])
        more = f" and {len(uneven) - 1} more" * (len(uneven) > 1)
        notes.append(
            f"the rates of {here} to {there}{more} differ by direction, and the slower one counts"
        )
    return tuple(notes)


def build_placement_document(placement: DevicePlacement) -> dict[str, JsonValue]:
    """Return the rings as a document; rates are in GB/s."""
    names = placement.topology.names
    return {
        "devices": list(names),
        "rings": [
            {
                "size": size,
                "ring": None if ring is None else [names[each] for each in ring.devices],
                "slowest_gb_per_s": None
                if ring is None or not np.isfinite(ring.rate)
                else ring.rate,
            }
            for size, ring in placement.rings.items()
        ],
        "notes": list(list_notes(placement.topology)),
    }
