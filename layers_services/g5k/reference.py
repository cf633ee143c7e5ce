"""What Grid'5000 has: its clusters, as published in the testbed's own reference repository.

`reference.json` beside this file holds the facts of every cluster at one commit of
https://github.com/grid5000/reference-repository; `benchmarks/g5k_reference.py` writes it anew. The
testbed changes: what a reservation really gets is up to its API, and this is only what a scenario
can be checked against without it.
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
"""The job type without which OAR gives no node of an exotic cluster."""

_SERVER = re.compile(r"([a-z][a-z0-9_]*)-([1-9]\d{0,4})\.([a-z]+)\.grid5000\.fr", re.ASCII)
PowerMeter = Literal["wattmetre", "pdu", "bmc", ""]


class Gpus(Record):
    """The GPUs of each node."""

    model: str
    count: int
    memory_gib: int


class Cluster(Record):
    """One cluster.

    Attributes:
        name: such as `gros`.
        site: such as `nancy`.
        numbers: of its nodes, such as `1-11,13`.
        cores: physical cores of a node (of the smallest, where they differ).
        memory_gib: of a node (of the smallest, where they differ).
        cpu: such as `2 x Intel Xeon Gold 6126`.
        architecture: `x86_64`, `aarch64` or `ppc64le`.
        queues: that its nodes can be reserved in, without `admin`.
        exotic: its nodes are given only to jobs of type `exotic`.
        deploy: its nodes can be given another system.
        kavlan: its nodes can be put into a VLAN.
        gpus: of every node; null where there are none.
        ethernet_gbps: of the interface that is up on the production network.
        ethernets: Ethernet interfaces that can be used, that one included.
        infiniband_gbps: 0 where there is none.
        omnipath_gbps: 0 where there is none.
        power_meter: what measures a node's power for kwollect, the best there is; empty where
            nothing does.
        longest_hours: longest walltime by node numbers, where the testbed limits it (production
            queue).
    """

    name: str
    site: str
    numbers: str
    cores: int
    memory_gib: int
    cpu: str
    architecture: str
    queues: tuple[str, ...]
    exotic: bool = False
    deploy: bool = True
    kavlan: bool = True
    gpus: Gpus | None = None
    ethernet_gbps: float
    ethernets: int
    infiniband_gbps: float = 0.0
    omnipath_gbps: float = 0.0
    power_meter: PowerMeter = ""
    longest_hours: Mapping[str, float] = {}

    @property
    def nodes(self) -> int:
        """How many nodes it has."""
        return len(spelled_out(self.numbers))

    def has(self, number: int) -> bool:
        """Whether it has a node of this number."""
        return number in spelled_out(self.numbers)

    def server(self, number: int) -> str:
        """The full name of one of its nodes."""
        return f"{self.name}-{number}.{self.site}.grid5000.fr"

    def nodes_for(self, walltime_s: float) -> int:
        """How many of its nodes accept a job this long."""
        limited = {
            n: hours for numbers, hours in self.longest_hours.items() for n in spelled_out(numbers)
        }
        return sum(
            walltime_s <= 3600 * limited.get(n, float("inf")) for n in spelled_out(self.numbers)
        )

    def longest_s(self, nodes: int) -> float:
        """The longest walltime that so many of its nodes accept; infinite where nothing limits
        it.
        """
        limits = sorted({3600 * hours for hours in self.longest_hours.values()})
        return next(
            (s for s in (float("inf"), *reversed(limits)) if self.nodes_for(s) >= nodes), 0.0
        )


class Reference(Record):
    """All clusters, and which state of the reference repository they were taken from."""

    repository: str
    commit: str
    date: str
    clusters: tuple[Cluster, ...]

    @cached_property
    def by_name(self) -> Mapping[str, Cluster]:
        """Clusters by name; no two sites share a name."""
        return {cluster.name: cluster for cluster in self.clusters}

    @property
    def sites(self) -> tuple[str, ...]:
        """Every site that has a cluster."""
        return tuple(sorted({cluster.site for cluster in self.clusters}))


@cache
def load_reference() -> Reference:
    """The facts that this version of Laggard ships."""
    return Reference.model_validate_json(FILE.read_bytes())


def parse_server(name: str) -> tuple[str, int, str] | None:
    """Cluster, number and site of a node named in full, such as `gros-1.nancy.grid5000.fr`; None
    where it is no such name.
    """
    found = _SERVER.fullmatch(name)
    return (found[1], int(found[2]), found[3]) if found else None


@cache
def spelled_out(numbers: str) -> tuple[int, ...]:
    """`1-3,5` as (1, 2, 3, 5)."""
    return tuple(_parse_number_ranges(numbers))


def format_number_ranges(numbers: Iterable[int]) -> str:
    """(1, 2, 3, 5) as `1-3,5`."""
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
