"""Bottlenecks on end hosts, for real machines whose network cannot be shaped (pure functions).

A downlink is a queue on the receiving host. A shared link whose pairs all leave one host is a
queue for its outgoing packets. A shared link whose pairs all enter one host is a queue on that
host. Any other shared link needs a machine in the middle: one of its receivers, through which the
packets to the others make a detour. It must send nothing through the link itself, since its own
packets would not pass its queue. A link without such a receiver is refused with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from laggard.core.errors import Problem
from laggard.core.yaml_source import YamlSource
from laggard.network_emulation.link_plan import LinkPlan, SharedLink
from laggard.network_emulation.model import Heterogeneity, SharedRule

_FIX = (
    "name two groups without a common host, use uplinks or downlinks instead, or run with --on"
    " local"
)


@dataclass(frozen=True)
class IngressLimit:
    """Bottleneck on the receiving host.

    Attributes:
        host: the receiving host.
        rate_mbps: rate of the bottleneck.
        senders: names of the hosts whose packets pass through it.
        receivers: names of the hosts that these packets are sent to: the receiving host itself,
            and those to which it passes packets on.
    """

    host: str
    rate_mbps: float
    senders: tuple[str, ...]
    receivers: tuple[str, ...]


@dataclass(frozen=True)
class EgressLimit:
    """Bottleneck on the sending host.

    Attributes:
        host: the sending host.
        rate_mbps: rate of the bottleneck.
        receivers: names of the hosts that packets through it are sent to.
    """

    host: str
    rate_mbps: float
    receivers: tuple[str, ...]


def plan_inlets(plan: LinkPlan) -> tuple[IngressLimit, ...]:
    """Return downlinks and the shared links that are emulated where their packets arrive.

    They follow the plan's order of hosts.
    """
    names = [host.name for host in plan.hosts]
    found = [
        IngressLimit(
            name, access.down_mbps, tuple(other for other in names if other != name), (name,)
        )
        for name, access in plan.access.items()
        if access.down_mbps is not None
    ]
    for link in plan.shared:
        senders, receivers = _list_ends(link)
        router = _find_router(plan, link)
        if len(senders) > 1 and router is not None:
            found.append(
                IngressLimit(
                    router,
                    link.rate_mbps,
                    tuple(name for name in names if name in senders),
                    tuple(name for name in names if name in receivers),
                )
            )
    return tuple(sorted(found, key=lambda inlet: names.index(inlet.host)))


def plan_outlets(plan: LinkPlan) -> tuple[EgressLimit, ...]:
    """Return the shared links that are emulated where their packets leave."""
    names = [host.name for host in plan.hosts]
    found = [(link, *_list_ends(link)) for link in plan.shared]
    return tuple(
        EgressLimit(
            min(senders), link.rate_mbps, tuple(name for name in names if name in receivers)
        )
        for link, senders, receivers in found
        if len(senders) == 1
    )


def impossible_links(plan: LinkPlan) -> Mapping[str, str]:
    """Return the reasons why shared links cannot be emulated on end hosts, by the link's name."""
    return {
        link.name: reason for link in plan.shared if (reason := _find_refusal_reason(plan, link))
    }


def bottleneck_problems(
    plan: LinkPlan, heterogeneity: Heterogeneity, source: YamlSource
) -> tuple[Problem, ...]:
    """Return the entries of `heterogeneity.yaml` that cannot be emulated between real machines.

    Args:
        plan: link plan of these entries.
        heterogeneity: the validated file.
        source: the parsed file, to locate problems.
    """
    return tuple(_list_problems(impossible_links(plan), heterogeneity, source))


def _list_problems(
    reasons: Mapping[str, str], heterogeneity: Heterogeneity, source: YamlSource
) -> Iterator[Problem]:
    for i, entry in enumerate(heterogeneity.rules):
        if not isinstance(entry, SharedRule):
            continue
        named = re.compile(
            rf"shared-{i}(-forth|-back)?"
        )  # the names that `plan_links` gives to the links of an entry
        reason = next((reason for name, reason in reasons.items() if named.fullmatch(name)), "")
        if reason:
            yield source.locate_problem(
                ("deterministic", i, "between"), reason, _FIX, value=" and ".join(entry.between)
            )


def _find_refusal_reason(plan: LinkPlan, link: SharedLink) -> str:
    senders, receivers = _list_ends(link)
    if len(senders) == 1 or _find_router(plan, link) is not None:
        return ""
    if receivers <= senders:
        return (
            "each of its hosts sends and receives, but between real machines the traffic of a"
            " shared link passes the queue of a host that only receives"
        )
    return (
        f"{min(receivers - senders)} also has a downlink, but on a real machine inbound traffic can"
        " pass only one queue"
    )


def _find_router(plan: LinkPlan, link: SharedLink) -> str | None:
    """Return the first receiver of a shared link whose inbound queue all its packets can pass."""
    senders, receivers = _list_ends(link)
    for host in plan.hosts:
        access = plan.access.get(host.name)
        has_downlink = access is not None and access.down_mbps is not None
        if host.name in receivers - senders and not has_downlink:
            return host.name
    return None


def _list_ends(link: SharedLink) -> tuple[set[str], set[str]]:
    return {src for src, _ in link.pairs}, {dst for _, dst in link.pairs}
