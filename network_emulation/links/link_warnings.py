"""What a scenario's links may be but probably were not meant to be."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from laggard.core.errors import Problem
from laggard.core.hosts import Host, find_ambiguous_groups, select_hosts
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


def link_warnings(
    plan: LinkPlan,
    network: Network,
    heterogeneity: Heterogeneity,
    talking: Sequence[str],
    network_source: YamlSource = UNPLACED_NETWORK,
    heterogeneity_source: YamlSource = UNPLACED_HETEROGENEITY,
) -> tuple[Problem, ...]:
    """What is allowed but probably not meant.

    Args:
        plan: the plan of these files.
        network: the rules of `network.yaml`.
        heterogeneity: the entries of `heterogeneity.yaml`.
        talking: names of the hosts that exchange training traffic with each other.
        network_source: where `network` was read.
        heterogeneity_source: where `heterogeneity` was read.

    Returns:
        Ordered pairs of different tiers whose traffic no rule constrains, delays and rates without
        a unit, bare group names, of which E2Clab reaches only the first host, and bursts of losses
        on links that never lose a packet.
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
    for name, unit, fix in (
        ("delay", "microseconds", "10ms"),
        ("rate", "bits a second", "100mbit"),
    ):
        written = source.at((*key, name))
        if isinstance(written, str) and _NO_UNIT.fullmatch(written.strip()):
            rule = f"a {name} without a unit is in {unit}, as tc reads it"
            yield source.locate_problem((*key, name), rule, f"write the unit, such as {fix}")


def _warn_bare_groups(
    source: YamlSource,
    key: KeyPath,
    patterns: Sequence[tuple[str | int, str]],
    hosts: Sequence[Host],
) -> list[Problem]:
    return [
        source.locate_problem(
            (*key, where), "a bare group name reaches only its first host in E2Clab",
             f"for all of them write {term}.*",
            value=pattern,
        )
        for where, pattern in patterns
        for term in find_ambiguous_groups(pattern, hosts)
    ]  # fmt: skip


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
            isinstance(event, TraceEvent) or event.loss_percent
        ):
            lossy |= _select_pairs(event, plan.hosts)
    for i, rule in bursty:
        if not lossy & _select_pairs(rule, plan.hosts):
            fix = "give them a loss in network.yaml or in an event, or remove the burst"
            yield source.locate_problem(
                ("deterministic", i, "burst"), "these links never lose a packet", fix
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
                f"no rule constrains {sum(frees)} of {len(frees)} host pairs here, which exchange"
                " training traffic"
            )
            fix = (
                f"add a rule from {src_layer}.* to {dst_layer}.*, or `symmetric: true` to the one"
                " that returns"
            )
            yield source.locate_problem(("networks",), rule, fix, value=shown)
