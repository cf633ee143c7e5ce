"""What every host's drive is to be: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from laggard.core.emulated_drive import DriveLimits
from laggard.core.errors import Problem
from laggard.core.hosts import Host, select_hosts
from laggard.core.virtual_time import Dilation
from laggard.core.yaml_source import YamlSource
from laggard.network_emulation.model import Heterogeneity, HostRule, RandomHostEvent, TimedHostEvent

KEYS: Mapping[str, str] = {
    "read_mb_per_s": "read",
    "write_mb_per_s": "write",
    "read_latency_ms": "read_latency",
    "write_latency_ms": "write_latency",
}
"""Fields of `DriveLimits` and of the entries, and how they are written."""

_NOTHING_WRITTEN = (
    "nothing is written there: the first worker alone writes, and checkpoints alone",
    "set checkpoint_every in workload.yaml, or limit the first worker's host",
)

_HostEntry = HostRule | TimedHostEvent | RandomHostEvent


def plan_drives(heterogeneity: Heterogeneity, hosts: Sequence[Host]) -> Mapping[str, DriveLimits]:
    """Limits, in virtual units, of the drives of all hosts that are ever limited; later entries
    win.

    Args:
        heterogeneity: the entries; their patterns have been checked.
        hosts: every host of the continuum.

    Returns:
        By host, in the hosts' order; unlimited from the start where only an event names it.
    """
    limits: dict[str, DriveLimits] = {}
    for _, _, entry in _list_host_entries(heterogeneity):
        lasting = list_written_limits(entry) if isinstance(entry, HostRule) else {}
        for host in select_hosts(entry.hosts, hosts) if list_written_limits(entry) else ():
            limits[host.name] = replace(limits.get(host.name, DriveLimits()), **lasting)
    return {host.name: limits[host.name] for host in hosts if host.name in limits}


def dilate_limits(limits: DriveLimits, dilation: Dilation) -> DriveLimits:
    """The real limits of virtual ones."""

    def real(mb_per_s: float | None) -> float | None:
        return None if mb_per_s is None else mb_per_s / dilation.factor

    return DriveLimits(
        real(limits.read_mb_per_s),
        real(limits.write_mb_per_s),
        dilation.real_ms(limits.read_latency_ms),
        dilation.real_ms(limits.write_latency_ms),
    )


def list_written_limits(entry: _HostEntry) -> dict[str, float]:
    """What an entry says of storage, by the fields of `DriveLimits`."""
    values: dict[str, float | None] = {name: getattr(entry, name) for name in KEYS}
    return {name: value for name, value in values.items() if value is not None}


def storage_warnings(
    heterogeneity: Heterogeneity,
    workers: Sequence[str],
    writers: Sequence[str],
    hosts: Sequence[Host],
    source: YamlSource,
) -> Iterator[Problem]:
    """Entries that act on nothing, since only workers read and write through a drive.

    Args:
        heterogeneity: the entries; their patterns have been checked.
        workers: names of the hosts that carry one; none where nothing is trained.
        writers: names of those whose worker writes checkpoints.
        hosts: every host.
        source: where the entries were written.
    """
    unheld = "your own programs read and write as fast as this machine does"
    rule = f"only Laggard's workers are held to it: {'none runs there' if workers else unheld}"
    for section, i, entry in _list_host_entries(heterogeneity):
        names = {host.name for host in select_hosts(entry.hosts, hosts)}
        for name in list_written_limits(entry):
            if names.isdisjoint(workers):
                yield source.locate_problem((section, i, KEYS[name]), rule)
            elif name.startswith("write") and names.isdisjoint(writers):
                yield source.locate_problem((section, i, KEYS[name]), *_NOTHING_WRITTEN)


def _list_host_entries(heterogeneity: Heterogeneity) -> Iterator[tuple[str, int, _HostEntry]]:
    """Section, place and entry of everything that is said of hosts."""
    sections = (("deterministic", heterogeneity.rules), ("dynamic", heterogeneity.events))
    for section, entries in sections:
        for i, entry in enumerate(entries):
            if isinstance(entry, HostRule | TimedHostEvent | RandomHostEvent):
                yield section, i, entry
