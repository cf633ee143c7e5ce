"""Planned memory of every host (pure functions)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from laggard.core.edits import remove_key, write_value
from laggard.core.errors import Problem
from laggard.core.hosts import Host, select_hosts
from laggard.core.yaml_source import YamlSource
from laggard.network_emulation.model import Heterogeneity, HostRule

LEAST_WORKER_BYTES = 240 << 20
"""Memory that a worker needs to start. A worker with an MLP on digits held 237 MiB (PyTorch
2.13), and 232 MiB before it built its model."""


def plan_memory(heterogeneity: Heterogeneity, hosts: Sequence[Host]) -> Mapping[str, int]:
    """Return the bytes of memory of every host that an entry limits; later entries win.

    The patterns of the entries must have been checked.
    """
    return {
        host.name: rule.memory_bytes
        for _, rule in _list_limited_rules(heterogeneity)
        for host in select_hosts(rule.hosts, hosts)
        if rule.memory_bytes is not None
    }


def memory_problems(
    heterogeneity: Heterogeneity, workers: Sequence[str], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each limit that is too low for a worker to start.

    Args:
        heterogeneity: the entries; their patterns have been checked.
        workers: host name of every worker.
        hosts: every host.
        source: file of the entries.
    """
    carried = Counter(workers)
    for i, rule in _list_limited_rules(heterogeneity):
        most = max((carried[host.name] for host in select_hosts(rule.hosts, hosts)), default=0)
        if most and (rule.memory_bytes or 0) < most * LEAST_WORKER_BYTES:
            several = f", and {most} workers run on one host" if most > 1 else ""
            needed = (
                f"a worker needs at least {LEAST_WORKER_BYTES >> 20} MiB of memory to"
                f" start{several}"
            )
            least = f"{most * LEAST_WORKER_BYTES >> 20}MiB"
            key = ("deterministic", i, "memory")
            fix = write_value(key, least, f"raise the limit to at least {least}")
            yield source.locate_problem(key, needed, fix)


def memory_warnings(
    heterogeneity: Heterogeneity, workers: Sequence[str], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a warning for each limit without effect: only workers are watched.

    The arguments are those of `memory_problems`.
    """
    rule = (
        "the limit has no effect: "
        f"{'no worker runs on these hosts' if workers else 'your own programs are not limited'}"
    )
    for i, entry in _list_limited_rules(heterogeneity):
        if {host.name for host in select_hosts(entry.hosts, hosts)}.isdisjoint(workers):
            key = ("deterministic", i, "memory")
            yield source.locate_problem(key, rule, remove_key(key))


def _list_limited_rules(heterogeneity: Heterogeneity) -> Iterator[tuple[int, HostRule]]:
    for i, rule in enumerate(heterogeneity.rules):
        if isinstance(rule, HostRule) and rule.memory_bytes is not None:
            yield i, rule
