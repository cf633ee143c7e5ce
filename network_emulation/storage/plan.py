"""Planned limits of every host's drive (pure functions)."""

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
"""Fields of `DriveLimits` and of the entries, with their names in the scenario file."""

_NOTHING_WRITTEN = (
    "the limit has no effect: only the first worker writes, and it writes only checkpoints",
    "set checkpoint_every in workload.yaml, or limit the first worker's host",
)

_HostEntry = HostRule | TimedHostEvent | RandomHostEvent


def plan_drives(heterogeneity: Heterogeneity, hosts: Sequence[Host]) -> Mapping[str, DriveLimits]:
    """Return the virtual limits of all drives that are ever limited; later entries win.

    Args:
        heterogeneity: the entries; their patterns have been checked.
        hosts: every host of the continuum.

    Returns:
        Limits by host, in the order of `hosts`. A drive that only an event names is unlimited at
            first.
    """
    limits: dict[str, DriveLimits] = {}
    for _, _, entry in _list_host_entries(heterogeneity):
        lasting = list_written_limits(entry) if isinstance(entry, HostRule) else {}
        for host in select_hosts(entry.hosts, hosts) if list_written_limits(entry) else ():
            limits[host.name] = replace(limits.get(host.name, DriveLimits()), **lasting)
    return {host.name: limits[host.name] for host in hosts if host.name in limits}


def dilate_limits(limits: DriveLimits, dilation: Dilation) -> DriveLimits:
    """Convert virtual limits to real ones."""

    def real(mb_per_s: float | None) -> float | None:
        return None if mb_per_s is None else mb_per_s / dilation.factor

    return DriveLimits(
        real(limits.read_mb_per_s),
        real(limits.write_mb_per_s),
        dilation.real_ms(limits.read_latency_ms),
        dilation.real_ms(limits.write_latency_ms),
    )


def list_written_limits(entry: _HostEntry) -> dict[str, float]:
    """Return the storage limits that an entry contains, by the fields of `DriveLimits`."""
    values: dict[str, float | None] = {name: getattr(entry, name) for name in KEYS}
    return {name: value for name, value in values.items() if value is not None}


def storage_warnings(
    heterogeneity: Heterogeneity,
    workers: Sequence[str],
    writers: Sequence[str],
    hosts: Sequence[Host],
    source: YamlSource,
) -> Iterator[Problem]:
    """Yield a warning for each entry without effect: only workers read and write through a drive.

    Args:
        heterogeneity: the entries; their patterns have been checked.
        workers: names of the hosts with a worker; empty if nothing is trained.
        writers: names of the hosts whose worker writes checkpoints.
        hosts: every host.
        source: file of the entries.
    """
    unheld = "your own programs are not limited"
    rule = f"the limit has no effect: {'no worker runs on these hosts' if workers else unheld}"
    for section, i, entry in _list_host_entries(heterogeneity):
        names = {host.name for host in select_hosts(entry.hosts, hosts)}
        for name in list_written_limits(entry):
            if names.isdisjoint(workers):
                yield source.locate_problem((section, i, KEYS[name]), rule, "remove it")
            elif name.startswith("write") and names.isdisjoint(writers):
                yield source.locate_problem((section, i, KEYS[name]), *_NOTHING_WRITTEN)


def _list_host_entries(heterogeneity: Heterogeneity) -> Iterator[tuple[str, int, _HostEntry]]:
    """Yield section, index and entry for every entry about hosts."""
    sections = (("deterministic", heterogeneity.rules), ("dynamic", heterogeneity.events))
    for section, entries in sections:
        for i, entry in enumerate(entries):
            if isinstance(entry, HostRule | TimedHostEvent | RandomHostEvent):
                yield section, i, entry
