"""Warnings about links that are valid but probably unintended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from laggard.core.corrections.host_patterns import warn_ambiguous_groups
from laggard.core.errors import Problem
from laggard.core.hosts import Host, select_hosts
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.network_emulation.link_plan import LinkPlan, Pair
from laggard.network_emulation.links.plan_links import UNPLACED_HETEROGENEITY, UNPLACED_NETWORK
from laggard.network_emulation.model import (
    Heterogeneity,
    LinkEvent,
    LinkRule,
    Network,
    RandomHostEvent,
    SharedRule,
    TimedHostEvent,
    TraceEvent,
)

_NO_UNIT = re.compile(r"[\d.]*[1-9][\d.]*", re.ASCII)
"""A positive number without a unit."""


def link_warnings(
    plan: LinkPlan,
    network: Network,
    heterogeneity: Heterogeneity,
    talking: Sequence[str],
    network_source: YamlSource = UNPLACED_NETWORK,
    heterogeneity_source: YamlSource = UNPLACED_HETEROGENEITY,
) -> tuple[Problem, ...]:
    """Return warnings about settings that are valid but probably unintended.

    Args:
        plan: link plan of these files.
        network: the rules of `network.yaml`.
        heterogeneity: the entries of `heterogeneity.yaml`.
        talking: names of the hosts that exchange training traffic with each other.
        network_source: the parsed `network.yaml`.
        heterogeneity_source: the parsed `heterogeneity.yaml`.

    Returns:
        Warnings about ordered pairs of different tiers whose traffic no rule constrains, delays
            and rates without a unit, bare group names (E2Clab applies them to the first host
            only), and bursts of losses on links that never lose a packet.
    """
    bare: list[Problem] = []
    for i, rule in enumerate(network.rules):
        bare += _warn_missing_units(network_source, ("networks", i))
        bare += _warn_bare_groups(
            network_source, ("networks", i), [("src", rule.src), ("dst", rule.dst)], plan.hosts
        )
    for section, entries in (
        ("deterministic", heterogeneity.rules),
        ("dynamic", heterogeneity.events),
    ):
        for i, entry in enumerate(entries):
            patterns = [
                (k, getattr(entry, k)) for k in ("src", "dst", "hosts") if hasattr(entry, k)
            ]
            bare += _warn_bare_groups(heterogeneity_source, (section, i), patterns, plan.hosts)
            if isinstance(entry, SharedRule):
                for side, pattern in enumerate(entry.between):
                    bare += _warn_bare_groups(
                        heterogeneity_source, (section, i, "between"), [(side, pattern)], plan.hosts
                    )
    return (
        *bare,
        *_lossless_bursts(plan, heterogeneity, heterogeneity_source),
        *_warn_unconstrained_pairs(plan, talking, network_source),
    )


def _warn_missing_units(source: YamlSource, key: KeyPath) -> Iterable[Problem]:
    written = source.at((*key, "delay"))
    if isinstance(written, str) and _NO_UNIT.fullmatch(written.strip()):
        number = written.strip()
        rule = "a delay without a unit is read as microseconds, as in tc"
        fix = f"write {number}us, or {number}ms if milliseconds are meant"
        yield source.locate_problem((*key, "delay"), rule, fix)


def _warn_bare_groups(
    source: YamlSource,
    key: KeyPath,
    patterns: Sequence[tuple[str | int, str]],
    hosts: Sequence[Host],
) -> list[Problem]:
    return [
        problem
        for where, pattern in patterns
        for problem in warn_ambiguous_groups(source, (*key, where), pattern, hosts)
    ]


def _lossless_bursts(
    plan: LinkPlan, heterogeneity: Heterogeneity, source: YamlSource
) -> Iterable[Problem]:
    bursty = [
        (i, rule)
        for i, rule in enumerate(heterogeneity.rules)
        if isinstance(rule, LinkRule) and rule.burst_packets
    ]
    if not bursty:
        return
    lossy = {pair for pair, constraint in plan.pairs.items() if constraint.loss_percent}
    for event in heterogeneity.events:
        if not isinstance(event, TimedHostEvent | RandomHostEvent) and (
            # A trace may contain losses; its file is not read here.
            isinstance(event, TraceEvent) or event.loss_percent
        ):
            lossy |= _select_pairs(event, plan.hosts)
    for i, rule in bursty:
        if not lossy & _select_pairs(rule, plan.hosts):
            fix = "add a loss in network.yaml or in an event, or remove `burst`"
            yield source.locate_problem(
                ("deterministic", i, "burst"),
                "`burst` has no effect: these links have no loss",
                fix,
            )


def _select_pairs(rule: LinkRule | LinkEvent, hosts: Sequence[Host]) -> set[Pair]:
    forth = {
        (src.name, dst.name)
        for src in select_hosts(rule.src, hosts)
        for dst in select_hosts(rule.dst, hosts)
    }
    both_ways = rule.symmetric if isinstance(rule, LinkRule) else rule.both_ways
    return forth | {(dst, src) for src, dst in forth} if both_ways else forth


def _warn_unconstrained_pairs(
    plan: LinkPlan, talking: Sequence[str], source: YamlSource
) -> Iterable[Problem]:
    active = [host for host in plan.hosts if host.name in set(talking)]
    missing: dict[tuple[str, str], list[bool]] = {}
    for src in active:
        for dst in active:
            if src.layer != dst.layer:
                free = plan.expected(src.name, dst.name).is_neutral
                missing.setdefault((src.layer, dst.layer), []).append(free)
    for (src_layer, dst_layer), frees in missing.items():
        if any(frees):
            shown = f"{src_layer} to {dst_layer}"
            rule = (
                f"{sum(frees)} of {len(frees)} host pairs exchange training traffic over a link"
                " that no rule constrains"
            )
            fix = (
                f"add a rule from {src_layer}.* to {dst_layer}.*, or add `symmetric: true` to the"
                " rule in the other direction"
            )
            yield source.locate_problem(("networks",), rule, fix, value=shown)
