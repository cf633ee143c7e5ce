"""Compilation of `network.yaml` and `heterogeneity.yaml` to one plan for all links.

Planning is pure, and every contradiction is reported at its line. Rules apply to ordered pairs of
hosts. A later rule of `network.yaml` replaces the whole constraint that an earlier one gave to the
same ordered pair (like EnOSlib's `HTBSource.add_constraints`). `symmetric` also applies the rule
from dst to src.

Then the deterministic entries of `heterogeneity.yaml` apply in their order. A profile replaces the
whole constraints of its pairs in both directions, including additions of earlier entries. A matrix
replaces the delays, rates and losses that its cells give. The other entries add jitter, bursts of
losses, access links and shared bottlenecks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from laggard.core.corrections.host_patterns import check_pattern
from laggard.core.edits import Correction, remove_key, write_value
from laggard.core.errors import Problem, ScenarioError
from laggard.core.hosts import Host, find_pattern_error, select_hosts
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.network_emulation.link_plan import (
    PACKET_BYTES,
    QUEUE_PACKETS,
    AccessLink,
    Constraint,
    LinkPlan,
    Pair,
    SharedLink,
    TierPair,
    dilate_constraint,
    dilate_links,
    tier_pairs,
)
from laggard.network_emulation.links.link_matrix import MatrixCell
from laggard.network_emulation.loss_bursts import least_burst_packets
from laggard.network_emulation.model import (
    Heterogeneity,
    HostRule,
    LinkRule,
    MatrixRule,
    Network,
    ProfileRule,
    RandomHostEvent,
    RandomLinkEvent,
    SharedRule,
    TimedHostEvent,
    TimedLinkEvent,
    TraceEvent,
)
from laggard.network_emulation.profiles import load_profiles

__all__ = [
    "PACKET_BYTES",
    "QUEUE_PACKETS",
    "AccessLink",
    "Constraint",
    "LinkPlan",
    "Pair",
    "SharedLink",
    "TierPair",
    "dilate_constraint",
    "dilate_links",
    "plan_links",
    "tier_pairs",
]

MAX_PAIRS = 1_000_000
"""Largest number of ordered pairs of one rule; more would exceed the capacity of `tc` and
memory."""

UNPLACED_NETWORK = YamlSource("network.yaml", None, {})
UNPLACED_HETEROGENEITY = YamlSource("heterogeneity.yaml", None, {})

_Directed = LinkRule | TimedLinkEvent | RandomLinkEvent | TraceEvent


@dataclass
class Draft:
    """Unfinished plan and the problems found so far.

    Attributes:
        hosts: every host of the continuum.
        network: the parsed `network.yaml`.
        heterogeneity: the parsed `heterogeneity.yaml`.
        pairs: constraint of every ordered pair so far.
        access: access links by host name.
        shared: shared bottlenecks.
        problems: problems found so far.
        selected: hosts of every pattern so far; a network may name each host in many rules.
    """

    hosts: tuple[Host, ...]
    network: YamlSource
    heterogeneity: YamlSource
    pairs: dict[Pair, Constraint] = field(default_factory=dict)
    access: dict[str, AccessLink] = field(default_factory=dict)
    shared: list[SharedLink] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    selected: dict[str, tuple[Host, ...]] = field(default_factory=dict)

    def select(self, source: YamlSource, key: KeyPath, pattern: str) -> tuple[Host, ...]:
        """Return the hosts that match a pattern; record a problem at `key` if there are none."""
        if pattern not in self.selected:
            self.problems.extend(check_pattern(source, key, pattern, self.hosts))
            self.selected[pattern] = select_hosts(pattern, self.hosts)
        return self.selected[pattern]

    def ordered(
        self, source: YamlSource, key: KeyPath, src: str, dst: str, symmetric: bool
    ) -> list[Pair]:
        """Return the ordered pairs of a rule; record a problem if both its ends are one host."""
        senders = self.select(source, (*key, "src"), src)
        receivers = self.select(source, (*key, "dst"), dst)
        if len(senders) * len(receivers) > MAX_PAIRS:
            rule = (
                f"the rule names {len(senders)} x {len(receivers)} links; the limit is {MAX_PAIRS}"
            )
            self.problems.append(
                source.locate_problem(key, rule, "use fewer hosts", value=f"{src} to {dst}")
            )
            return []
        pairs = [(s.name, d.name) for s in senders for d in receivers if s.name != d.name]
        if senders and receivers and not pairs:
            rule = "src and dst are the same single host, but a host has no link to itself"
            self.problems.append(
                source.locate_problem(
                    key,
                    rule,
                    write_value((*key, "dst"), "*", "name two hosts, such as `dst: '*'`"),
                    value=f"{src} to {dst}",
                )
            )
        return [*pairs, *((d, s) for s, d in pairs)] if symmetric else pairs


def plan_links(
    network: Network,
    heterogeneity: Heterogeneity,
    hosts: Sequence[Host],
    network_source: YamlSource = UNPLACED_NETWORK,
    heterogeneity_source: YamlSource = UNPLACED_HETEROGENEITY,
    matrices: Mapping[str, Sequence[MatrixCell]] = MappingProxyType({}),
) -> LinkPlan:
    """Compile the rules of both files to one plan for all links, in virtual units.

    Args:
        network: the rules of `network.yaml`.
        heterogeneity: the entries of `heterogeneity.yaml`; an empty model if there is no file.
        hosts: every host of the continuum.
        network_source: the parsed `network.yaml`, to locate problems.
        heterogeneity_source: the parsed `heterogeneity.yaml`, to locate problems.
        matrices: cells of every matrix by its name in the scenario (see `parse_matrix`).

    Raises:
        ScenarioError: if patterns match nothing or only one host with itself, a jitter exceeds its
            delay, a burst is too short for its loss, or a pair is in two shared links.
    """
    draft = Draft(tuple(hosts), network_source, heterogeneity_source)
    for i, rule in enumerate(network.rules):
        constraint = Constraint(
            delay_ms=rule.delay_ms, rate_mbps=rule.rate_mbps, loss_percent=rule.loss_percent
        )
        pairs = draft.ordered(network_source, ("networks", i), rule.src, rule.dst, rule.symmetric)
        draft.pairs.update(dict.fromkeys(pairs, constraint))
    for i, entry in enumerate(heterogeneity.rules):
        key: KeyPath = ("deterministic", i)
        if isinstance(entry, LinkRule):
            _add_link(draft, key, entry)
        elif isinstance(entry, ProfileRule):
            _add_profile(draft, key, entry)
        elif isinstance(entry, SharedRule):
            _add_shared(draft, key, entry)
        elif isinstance(entry, MatrixRule):
            _add_matrix(draft, key, matrices[entry.matrix])
        else:
            _add_access(draft, key, entry)
    for i, event in enumerate(heterogeneity.events):
        _add_event(draft, ("dynamic", i), event)
    _require_tables(draft, heterogeneity)
    if draft.problems:
        raise ScenarioError(tuple(draft.problems))
    return LinkPlan(draft.hosts, _in_host_order(draft), dict(draft.access), tuple(draft.shared))


def _add_link(draft: Draft, key: KeyPath, rule: LinkRule) -> None:
    pairs = draft.ordered(draft.heterogeneity, key, rule.src, rule.dst, rule.symmetric)
    changed = {
        pair: _apply_jitter_and_bursts(draft.pairs.get(pair, Constraint()), rule) for pair in pairs
    }
    short = [
        pair for pair, constraint in changed.items() if constraint.jitter_ms > constraint.delay_ms
    ]
    if short and rule.jitter_ms is not None:
        src, dst = short[0]
        delay_ms = changed[short[0]].delay_ms
        rule_text = (
            f"jitter must not exceed the delay, which is {delay_ms:g} ms from {src} to {dst}"
        )
        least = min(changed[pair].delay_ms for pair in short)
        text = (
            f"lower the jitter to {least:g}ms, or set a longer delay in network.yaml (`symmetric:"
            " true` for both directions) or by an earlier entry"
        )
        fix = write_value((*key, "jitter"), f"{least:g}ms", text)
        shown = f"{rule.jitter_ms:g} ms"
        draft.problems.append(
            draft.heterogeneity.locate_problem((*key, "jitter"), rule_text, fix, value=shown)
        )
    if rule.burst_packets is not None:
        for pair, constraint in changed.items():
            if _too_short(
                draft, (*key, "burst"), pair, constraint.loss_percent, constraint.burst_packets
            ):
                break
    draft.pairs.update(changed)


def _apply_jitter_and_bursts(constraint: Constraint, rule: LinkRule) -> Constraint:
    if rule.jitter_ms is not None:
        constraint = replace(constraint, jitter_ms=rule.jitter_ms, distribution=rule.distribution)
    return (
        constraint
        if rule.burst_packets is None
        else replace(constraint, burst_packets=rule.burst_packets)
    )


def _too_short(
    draft: Draft, key: KeyPath, pair: Pair, loss_percent: float, burst_packets: float
) -> bool:
    """Return True, and record a problem at `key`, if bursts are too short for the loss."""
    if burst_packets <= 1 or loss_percent >= 100:
        return False
    # Rounded up to two decimals, so that the suggested burst is accepted.
    least = math.ceil(round(100 * least_burst_packets(loss_percent / 100), 6)) / 100
    if burst_packets >= least:
        return False
    rule = (
        f"a mean burst of {burst_packets:g} packets is too short for a loss of {loss_percent:g} %"
        f" from {pair[0]} to {pair[1]}"
    )
    text = f"lower the loss, or set `burst` to at least {least:g}"
    fix = write_value(key, least, text) if key[-1] == "burst" else remove_key(key, text)
    draft.problems.append(draft.heterogeneity.locate_problem(key, rule, fix))
    return True


def _add_profile(draft: Draft, key: KeyPath, rule: ProfileRule) -> None:
    profile = load_profiles()[rule.profile]
    up = _select_upward_pairs(draft, key, rule.src, rule.dst)
    draft.pairs.update(dict.fromkeys(up, profile.up.constraint))
    draft.pairs.update(dict.fromkeys([(dst, src) for src, dst in up], profile.down.constraint))


def _add_matrix(draft: Draft, key: KeyPath, cells: Sequence[MatrixCell]) -> None:
    at = (*key, "matrix")
    count = sum(len(cell.src) * len(cell.dst) for cell in cells)
    if count > MAX_PAIRS:
        rule = f"the matrix names {count} links; the limit is {MAX_PAIRS}"
        draft.problems.append(draft.heterogeneity.locate_problem(at, rule, "use fewer hosts"))
        return
    for cell in cells:
        for pair in ((src, dst) for src in cell.src for dst in cell.dst if src != dst):
            draft.pairs[pair] = cell.apply(draft.pairs.get(pair, Constraint()))
    named = {(src, dst) for cell in cells for src in cell.src for dst in cell.dst if src != dst}
    jittery = [pair for pair in named if draft.pairs[pair].jitter_ms]
    for pair in sorted(jittery):
        constraint = draft.pairs[pair]
        if constraint.jitter_ms > constraint.delay_ms:
            rule = (
                f"the jitter of {constraint.jitter_ms:g} ms from {pair[0]} to {pair[1]} must not"
                f" exceed the delay, which is {constraint.delay_ms:g} ms in the matrix"
            )
            fix = "lower the jitter of the earlier entry, or raise the delay"
            draft.problems.append(draft.heterogeneity.locate_problem(at, rule, fix))
            return
    for pair in sorted(named):
        constraint = draft.pairs[pair]
        if _too_short(draft, at, pair, constraint.loss_percent, constraint.burst_packets):
            return


def _select_upward_pairs(draft: Draft, key: KeyPath, src: str, dst: str) -> list[Pair]:
    """Return the pairs of a profile from its src to its dst; no pair may be both up and down."""
    pairs = draft.ordered(draft.heterogeneity, key, src, dst, symmetric=False)
    back = {(dst, src) for src, dst in pairs}
    both = next((pair for pair in pairs if pair in back), None)
    if both is not None:
        rule = f"a profile needs separate src and dst, but {both[0]} and {both[1]} are in both"
        draft.problems.append(
            draft.heterogeneity.locate_problem(
                (*key, "profile"), rule, "use two groups without common hosts"
            )
        )
    return pairs


def _add_shared(draft: Draft, key: KeyPath, rule: SharedRule) -> None:
    left, right = (
        draft.select(draft.heterogeneity, (*key, "between", i), rule.between[i]) for i in (0, 1)
    )
    forth = frozenset((a.name, b.name) for a in left for b in right if a.name != b.name)
    back = frozenset((b, a) for a, b in forth)
    if left and right and not forth:
        text = "both ends are the same single host, but a host has no link to itself"
        draft.problems.append(
            draft.heterogeneity.locate_problem((*key, "between"), text, "name two groups")
        )
        return
    taken = {pair: link.name for link in draft.shared for pair in link.pairs}
    clash = sorted(pair for pair in forth | back if pair in taken)
    if clash:
        text = (
            f"{clash[0][0]} to {clash[0][1]} is already in another shared link, but a pair can"
            " cross only one"
        )
        draft.problems.append(
            draft.heterogeneity.locate_problem(
                (*key, "between"), text, "narrow one of the patterns"
            )
        )
        return
    # `end_host_shaping` finds the entry by this name.
    name = f"shared-{key[-1]}"
    # Groups that overlap share one bottleneck in both directions; separate groups have two.
    if forth & back:
        draft.shared.append(SharedLink(name, forth | back, rule.shared_mbps))
    else:
        draft.shared.append(SharedLink(f"{name}-forth", forth, rule.shared_mbps))
        draft.shared.append(SharedLink(f"{name}-back", back, rule.shared_mbps))


def _add_access(draft: Draft, key: KeyPath, rule: HostRule) -> None:
    for host in draft.select(draft.heterogeneity, (*key, "hosts"), rule.hosts):
        if rule.uplink_mbps is None and rule.downlink_mbps is None:
            continue
        link = draft.access.get(host.name, AccessLink(host.name))
        up = link.up_mbps if rule.uplink_mbps is None else rule.uplink_mbps
        down = link.down_mbps if rule.downlink_mbps is None else rule.downlink_mbps
        draft.access[host.name] = AccessLink(host.name, up, down)


def _add_event(
    draft: Draft,
    key: KeyPath,
    event: TimedHostEvent | RandomHostEvent | TimedLinkEvent | RandomLinkEvent | TraceEvent,
) -> None:
    if isinstance(event, TimedHostEvent | RandomHostEvent):
        draft.select(draft.heterogeneity, (*key, "hosts"), event.hosts)
        return
    if isinstance(event, TraceEvent) or event.profile is None:
        pairs = draft.ordered(draft.heterogeneity, key, event.src, event.dst, event.both_ways)
    else:
        up = _select_upward_pairs(draft, key, event.src, event.dst)
        pairs = [*up, *((dst, src) for src, dst in up)]
    for pair in pairs:
        # Backends can change only links of the plan, so events add neutral ones.
        draft.pairs.setdefault(pair, Constraint())
    if not isinstance(event, TraceEvent) and event.jitter_ms is not None:
        _require_delay(draft, key, pairs, event.jitter_ms, event.delay_ms)
    loss_percent = None if isinstance(event, TraceEvent) else event.lost_percent
    if loss_percent is not None:
        # `any` stops at the first pair with a problem: one message per event is enough.
        any(
            _too_short(draft, (*key, "loss"), pair, loss_percent, draft.pairs[pair].burst_packets)
            for pair in pairs
        )


def _require_delay(
    draft: Draft, key: KeyPath, pairs: Sequence[Pair], jitter_ms: float, delay_ms: float | None
) -> None:
    """Record a problem if an event's jitter exceeds the delay of the event or of a link."""
    delays = [
        (pair, draft.pairs[pair].delay_ms if delay_ms is None else delay_ms) for pair in pairs
    ]
    short = min((each for each in delays if jitter_ms > each[1]), key=_delay_of, default=None)
    if short is not None:
        (src, dst), has_ms = short
        rule = f"jitter must not exceed the delay, which is then {has_ms:g} ms from {src} to {dst}"
        text = f"lower the jitter to {has_ms:g}ms, or set a longer delay in the event"
        fix = write_value((*key, "jitter"), f"{has_ms:g}ms", text)
        draft.problems.append(
            draft.heterogeneity.locate_problem(
                (*key, "jitter"), rule, fix, value=f"{jitter_ms:g} ms"
            )
        )


def _delay_of(delay: tuple[Pair, float]) -> float:
    return delay[1]


def _require_tables(draft: Draft, heterogeneity: Heterogeneity) -> None:
    """Record a problem if a link would return to uniform jitter after an event's profile.

    The kernel's netem keeps a table once it has received one, so it cannot return to the uniform
    distribution.
    """
    changing = [
        (i, event)
        for i, event in enumerate(heterogeneity.events)
        if isinstance(event, TimedLinkEvent | RandomLinkEvent)
    ]
    if not any(event.profile for _, event in changing):
        return
    uniform = {
        pair for pair, constraint in draft.pairs.items() if constraint.distribution == "uniform"
    }
    varied = {pair for pair in uniform if draft.pairs[pair].jitter_ms}
    for _, event in changing:
        if event.jitter_ms:
            varied |= uniform.intersection(_event_pairs(draft, event))
    for i, event in changing:
        profile = None if event.profile is None else load_profiles()[event.profile]
        tables = profile is not None and any(
            way.distribution != "uniform" for way in (profile.up, profile.down)
        )
        clash = sorted(varied.intersection(_event_pairs(draft, event))) if tables else []
        if clash:
            rule = (
                f"the jitter from {clash[0][0]} to {clash[0][1]} is uniform, but netem cannot"
                " return to uniform jitter after this profile"
            )
            fix = Correction(
                "use `distribution: normal` or `pareto` for these links, or remove their jitter or"
                " this entry",
                remove_key(("dynamic", i)).edits,
            )
            draft.problems.append(
                draft.heterogeneity.locate_problem(("dynamic", i, "profile"), rule, fix)
            )


def _event_pairs(draft: Draft, event: TimedLinkEvent | RandomLinkEvent) -> set[Pair]:
    if find_pattern_error(event.src) or find_pattern_error(event.dst):
        return set()
    pairs = {
        (s.name, d.name)
        for s in select_hosts(event.src, draft.hosts)
        for d in select_hosts(event.dst, draft.hosts)
    }
    return pairs | {(dst, src) for src, dst in pairs} if event.both_ways else pairs


def _in_host_order(draft: Draft) -> Mapping[Pair, Constraint]:
    order = {host.name: i for i, host in enumerate(draft.hosts)}
    names = sorted(draft.pairs, key=lambda pair: (order[pair[0]], order[pair[1]]))
    return {pair: draft.pairs[pair] for pair in names}
