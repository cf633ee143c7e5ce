"""How much memory every host has: pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from laggard.core.errors import Problem
from laggard.core.hosts import Host, select_hosts
from laggard.core.yaml_source import YamlSource
from laggard.network_emulation.model import Heterogeneity, HostRule

LEAST_WORKER_BYTES = 240 << 20
"""What a worker cannot do without: one of an MLP on digits held 237 MiB (PyTorch 2.13), and 232
before it built its model."""


def plan_memory(heterogeneity: Heterogeneity, hosts: Sequence[Host]) -> Mapping[str, int]:
    """Bytes of memory of every host where an entry limits it; later entries win. The entries'
    patterns have been checked.
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
    """Limits that no worker could even start within.

    Args:
        heterogeneity: the entries; their patterns have been checked.
        workers: the host of every worker, by name.
        hosts: every host.
        source: where the entries were written.
    """
    carried = Counter(workers)
    for i, rule in _list_limited_rules(heterogeneity):
        most = max((carried[host.name] for host in select_hosts(rule.hosts, hosts)), default=0)
        if most and (rule.memory_bytes or 0) < most * LEAST_WORKER_BYTES:
            several = f", and {most} of them run there" if most > 1 else ""
            needed = (
                f"a worker holds {LEAST_WORKER_BYTES >> 20} MiB before it has learnt"
                f" anything{several}"
            )
            fix = f"make it {most * LEAST_WORKER_BYTES >> 20}MiB or more"
            yield source.locate_problem(("deterministic", i, "memory"), needed, fix)


def memory_warnings(
    heterogeneity: Heterogeneity, workers: Sequence[str], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Limits that act on nothing, since only workers are watched; the arguments are those of
    `memory_problems`.
    """
    rule = (
        "only Laggard's workers are held to it:"
        f" {'none runs there' if workers else 'your own programs are not'}"
    )
    for i, entry in _list_limited_rules(heterogeneity):
        if {host.name for host in select_hosts(entry.hosts, hosts)}.isdisjoint(workers):
            yield source.locate_problem(("deterministic", i, "memory"), rule)


def _list_limited_rules(heterogeneity: Heterogeneity) -> Iterator[tuple[int, HostRule]]:
    for i, rule in enumerate(heterogeneity.rules):
        if isinstance(rule, HostRule) and rule.memory_bytes is not None:
            yield i, rule
