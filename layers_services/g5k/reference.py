"""Clusters of Grid'5000, as published in the testbed's reference repository.

`reference.json` next to this file describes every node of every cluster at one commit of
https://github.com/grid5000/reference-repository; `benchmarks/g5k_reference.py` regenerates it. The
testbed changes over time and its API decides about reservations. This data allows checks of a
scenario without the API.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from laggard.core.run_schema import Record

FILE = Path(__file__).with_name("reference.json")
EXOTIC = "exotic"
"""Job type that OAR requires for nodes of an exotic cluster."""

_SERVER = re.compile(r"([a-z][a-z0-9_]*)-([1-9]\d{0,4})\.([a-z]+)\.grid5000\.fr", re.ASCII)
PowerMeter = Literal["wattmetre", "pdu", "bmc", ""]


class Gpus(Record):
    """GPUs of one model in a node."""

    model: str
    count: int
    memory_gib: int


class Hardware(Record):
    """Hardware of the nodes of a cluster that are alike.

    Attributes:
        numbers: numbers of the nodes, such as `1-11,13`
        cores: physical cores
        memory_gib: memory
        cpu: processors, such as `2 x Intel Xeon Gold 6126`
        architecture: `x86_64`, `aarch64` or `ppc64le`
        gpus: GPUs, by model; empty if there are none
        ethernet_gbps: rate of the interface that is connected to the production network
        ethernets: number of usable Ethernet interfaces, including that one
        infiniband_gbps: rate of InfiniBand; 0 if there is none
        omnipath_gbps: rate of Omni-Path; 0 if there is none
    """

    numbers: str
    cores: int
    memory_gib: int
    cpu: str
    architecture: str
    gpus: tuple[Gpus, ...] = ()
    ethernet_gbps: float
    ethernets: int
    infiniband_gbps: float = 0.0
    omnipath_gbps: float = 0.0


class Cluster(Record):
    """Cluster of nodes, whose hardware may differ.

    Attributes:
        name: name of the cluster, such as `gros`
        site: site of the cluster, such as `nancy`
        hardware: hardware of its nodes, one entry for all nodes that are alike
        queues: queues in which its nodes can be reserved, without `admin`
        exotic: True if only jobs of type `exotic` get its nodes
        deploy: True if another system can be deployed on its nodes
        kavlan: True if its nodes can be placed in a VLAN
        power_meter: best meter of a node's power in kwollect; empty if there is none
        longest_hours: longest walltime by node numbers, if the testbed limits it (production
            queue)
    """

    name: str
    site: str
    hardware: tuple[Hardware, ...]
    queues: tuple[str, ...]
    exotic: bool = False
    deploy: bool = True
    kavlan: bool = True
    power_meter: PowerMeter = ""
    longest_hours: Mapping[str, float] = {}

    @property
    def numbers(self) -> str:
        """Return the numbers of its nodes, such as `1-11,13`."""
        return format_number_ranges(
            number for hardware in self.hardware for number in spelled_out(hardware.numbers)
        )

    @property
    def architecture(self) -> str:
        """Return the architecture of its nodes, which is the same for all."""
        return self.hardware[0].architecture

    @property
    def has_gpus(self) -> bool:
        """Return whether every node has a GPU."""
        return all(hardware.gpus for hardware in self.hardware)

    def hardware_of(self, numbers: Iterable[int]) -> tuple[Hardware, ...]:
        """Return the hardware of some of its nodes; each entry has only the numbers of these."""
        wanted = set(numbers)
        return tuple(
            hardware.model_copy(update={"numbers": format_number_ranges(chosen)})
            for hardware in self.hardware
            if (chosen := wanted.intersection(spelled_out(hardware.numbers)))
        )

    @property
    def nodes(self) -> int:
        """Return the number of its nodes."""
        return len(spelled_out(self.numbers))

    def has(self, number: int) -> bool:
        """Return whether the cluster has a node of this number."""
        return number in spelled_out(self.numbers)

    def server(self, number: int) -> str:
        """Return the full name of one of its nodes."""
        return f"{self.name}-{number}.{self.site}.grid5000.fr"

    def nodes_for(self, walltime_s: float) -> int:
        """Return the number of its nodes that accept a job of this length."""
        limited = {
            n: hours for numbers, hours in self.longest_hours.items() for n in spelled_out(numbers)
        }
        return sum(
            walltime_s <= 3600 * limited.get(n, float("inf")) for n in spelled_out(self.numbers)
        )

    def longest_s(self, nodes: int) -> float:
        """Return the longest walltime that this many nodes accept; infinite without a limit."""
        limits = sorted({3600 * hours for hours in self.longest_hours.values()})
        return next(
            (s for s in (float("inf"), *reversed(limits)) if self.nodes_for(s) >= nodes), 0.0
        )


class Reference(Record):
    """Clusters, and the state of the reference repository that they were taken from."""

    repository: str
    commit: str
    date: str
    clusters: tuple[Cluster, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Cluster]:
        """Return clusters by name; cluster names are unique across sites."""
        return {cluster.name: cluster for cluster in self.clusters}

    @property
    def sites(self) -> tuple[str, ...]:
        """Return every site that has a cluster."""
        return tuple(sorted({cluster.site for cluster in self.clusters}))


@cache
def load_reference() -> Reference:
    """Return the reference data that this version of Laggard ships."""
    return Reference.model_validate_json(FILE.read_bytes())


def parse_server(name: str) -> tuple[str, int, str] | None:
    """Return cluster, number and site of a node's full name; None if the name is malformed.

    An example of a full name is `gros-1.nancy.grid5000.fr`.
    """
    found = _SERVER.fullmatch(name)
    return (found[1], int(found[2]), found[3]) if found else None


@cache
def spelled_out(numbers: str) -> tuple[int, ...]:
    """Expand `1-3,5` to (1, 2, 3, 5)."""
    return tuple(_parse_number_ranges(numbers))


def format_number_ranges(numbers: Iterable[int]) -> str:
    """Format (1, 2, 3, 5) as `1-3,5`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _parse_number_ranges(numbers: str) -> Iterator[int]:
    for part in numbers.split(","):
        if part:
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)
