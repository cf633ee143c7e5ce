"""Checks of `network.yaml` and `heterogeneity.yaml` against the hosts of the scenario."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from laggard.core.corrections.host_patterns import check_pattern_syntax
from laggard.core.edits import write_value
from laggard.core.errors import Problem
from laggard.core.hosts import (
    MAX_RULES,
    Host,
    select_hosts,
)
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.network_emulation.model import (
    MAX_CHANGES,
    Heterogeneity,
    HostRule,
    MatrixRule,
    Network,
    RandomHostEvent,
    RandomLinkEvent,
    SharedRule,
    TimedHostEvent,
)

MAX_PAIRS = 500_000
"""Largest number of host pairs that all rules together may name."""
MAX_NETWORK_RULES = 10_000
"""Largest number of rules in `network.yaml`; E2Clab describes a matrix of a hundred hosts with
4,950."""
MIN_SHARE = 0.001
"""Smallest CPU share: a quota of 1 ms, the kernel's smallest, in its longest period of 1 s."""


def validate_rules(
    network: Network,
    heterogeneity: Heterogeneity,
    hosts: Sequence[Host],
    network_source: YamlSource,
    heterogeneity_source: YamlSource,
) -> Iterator[Problem]:
    """Yield a problem for each malformed pattern and for more rules or pairs than supported."""
    entries = (
        (network_source, "networks", [_list_patterns(rule) for rule in network.rules]),
        (
            heterogeneity_source,
            "deterministic",
            [_list_patterns(rule) for rule in heterogeneity.rules],
        ),
        (
            heterogeneity_source,
            "dynamic",
            [_list_patterns(event) for event in heterogeneity.events],
        ),
    )
    sizes: dict[str, int] = {}
    pairs = 0
    for source, section, patterns_by_entry in entries:
        most = MAX_NETWORK_RULES if section == "networks" else MAX_RULES
        if len(patterns_by_entry) > most:
            rule = f"the file has {len(patterns_by_entry)} entries; the limit is {most}"
            fix = "use wider patterns, or a `matrix` in heterogeneity.yaml"
            yield source.locate_problem((section,), rule, fix, "")
            continue
        for i, patterns in enumerate(patterns_by_entry):
            for key, pattern in patterns.items():
                yield from check_pattern_syntax(source, (section, i, *key), pattern, hosts)
                if pattern not in sizes:
                    sizes[pattern] = len(select_hosts(pattern, hosts))
            pairs += (
                math.prod(sizes[pattern] for pattern in patterns.values())
                if len(patterns) == 2
                else 0
            )
    if pairs > MAX_PAIRS:
        rule = f"the rules name {pairs} host pairs; the limit is {MAX_PAIRS}"
        yield network_source.locate_problem(("networks",), rule, "use fewer hosts or rules", "")


def _check_shares(heterogeneity: Heterogeneity, source: YamlSource) -> Iterator[Problem]:
    """Yield a problem for each CPU share below the kernel's minimum."""
    rule = (
        f"a cpu share must be at least {100 * MIN_SHARE:g}%: its quota of 1 ms is refilled every"
        " 1 ms / share, at least once a second"
    )
    sections = (("deterministic", heterogeneity.rules), ("dynamic", heterogeneity.events))
    for section, entries in sections:
        for i, entry in enumerate(entries):
            share = getattr(entry, "cpu", None)
            if share is not None and share < MIN_SHARE:
                key = (section, i, "cpu")
                least = f"{100 * MIN_SHARE:g}%"
                yield source.locate_problem(
                    key, rule, write_value(key, least, f"raise the share to {least}")
                )


def _check_events(
    heterogeneity: Heterogeneity, horizon_s: float, hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each random event that is too frequent to be applied."""
    for i, event in enumerate(heterogeneity.events):
        if isinstance(event, RandomHostEvent | RandomLinkEvent):
            targets = (
                len(select_hosts(event.hosts, hosts)) if isinstance(event, RandomHostEvent) else 1
            )
            # Each occurrence is two changes, its begin and its end; each host has occurrences of
            # its own.
            changes = 2 * targets * horizon_s / event.random.every_s
            if changes > MAX_CHANGES:
                rule = (
                    f"this event makes {changes:.0f} changes in {horizon_s:g} s; the limit of a run"
                    f" is {MAX_CHANGES}"
                )
                key = ("dynamic", i, "random", "every")
                least = f"{math.ceil(2 * targets * horizon_s / MAX_CHANGES) + 1}s"
                fix = write_value(key, least, f"lengthen the period to {least} or more")
                yield source.locate_problem(key, rule, fix)


def _list_patterns(entry: object) -> Mapping[KeyPath, str]:
    """Return the host patterns of an entry, by their keys within the entry."""
    if isinstance(entry, SharedRule):
        return {("between", 0): entry.between[0], ("between", 1): entry.between[1]}
    if isinstance(entry, MatrixRule):
        return {}
    keys = (
        ("hosts",)
        if isinstance(entry, HostRule | TimedHostEvent | RandomHostEvent)
        else ("src", "dst")
    )
    return {(key,): getattr(entry, key) for key in keys}


def check_heterogeneity(
    heterogeneity: Heterogeneity,
    hosts: Sequence[Host],
    horizon_s: float | None,
    source: YamlSource,
) -> Iterator[Problem]:
    """Yield the problems of `heterogeneity.yaml`; its patterns must be valid.

    Args:
        heterogeneity: the entries of the file.
        hosts: every host.
        horizon_s: virtual seconds within which events can begin; None if unknown.
        source: the parsed file.
    """
    yield from _check_shares(heterogeneity, source)
    if horizon_s is not None:
        yield from _check_events(heterogeneity, horizon_s, hosts, source)
