"""Bottlenecks where nothing between the hosts can be shaped, as between real machines: which host
has which, or why none can.

A downlink is a queue on the host that receives. A shared link whose pairs all leave one host is a
queue among those that leave it, and one whose pairs all enter one host is a queue on that host. Any
other would need a machine in the middle. Pure.
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
    "share it among pairs that one host sends or receives, give the hosts uplinks or downlinks, or"
    " run --on local"
)


@dataclass(frozen=True)
class IngressLimit:
    """A bottleneck on the host that receives.

    Attributes:
        host: that host.
        rate_mbps: of the bottleneck.
        senders: names of the hosts whose packets pass through it.
    """

    host: str
    rate_mbps: float
    senders: tuple[str, ...]


@dataclass(frozen=True)
class EgressLimit:
    """A bottleneck on the host that sends.

    Attributes:
        host: that host.
        rate_mbps: of the bottleneck.
        receivers: names of the hosts that packets through it are for.
    """

    host: str
    rate_mbps: float
    receivers: tuple[str, ...]


def plan_inlets(plan: LinkPlan) -> tuple[IngressLimit, ...]:
    """Downlinks, and the shared links that are to be had where their packets arrive; hosts in the
    plan's order.
    """
    names = [host.name for host in plan.hosts]
    found = [
        IngressLimit(name, access.down_mbps, tuple(other for other in names if other != name))
        for name, access in plan.access.items()
        if access.down_mbps is not None
    ]
    for link in plan.shared:
        senders, receivers = _list_ends(link)
        if len(senders) > 1 and len(receivers) == 1:
            found.append(
                IngressLimit(
                    min(receivers), link.rate_mbps, tuple(name for name in names if name in senders)
                )
            )
    return tuple(sorted(found, key=lambda inlet: names.index(inlet.host)))


def plan_outlets(plan: LinkPlan) -> tuple[EgressLimit, ...]:
    """The shared links that are to be had where their packets leave."""
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
    """Why shared links cannot be had on the hosts themselves, by the link's name."""
    return {
        link.name: reason for link in plan.shared if (reason := _find_refusal_reason(plan, link))
    }


def bottleneck_problems(
    plan: LinkPlan, heterogeneity: Heterogeneity, source: YamlSource
) -> tuple[Problem, ...]:
    """What `heterogeneity.yaml` asks for and real machines cannot have between them.

    Args:
        plan: of these entries.
        heterogeneity: the validated file.
        source: where it was read.
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
        )  # as `plan_links` names the links of an entry
        reason = next((reason for name, reason in reasons.items() if named.fullmatch(name)), "")
        if reason:
            yield source.locate_problem(
                ("deterministic", i, "between"), reason, _FIX, value=" and ".join(entry.between)
            )


def _find_refusal_reason(plan: LinkPlan, link: SharedLink) -> str:
    senders, receivers = _list_ends(link)
    if len(senders) == 1:
        return ""
    if len(receivers) > 1:
        text = f"{len(senders)} hosts send and {len(receivers)} receive"
        return (
            f"{text}, and between real machines a shared link is a queue on the one host that sends"
            " or receives all of it"
        )
    receiver = min(receivers)
    access = plan.access.get(receiver)
    if access is not None and access.down_mbps is not None:
        return (
            f"{receiver} has a downlink too, and on a real machine what arrives passes through one"
            " queue"
        )
    return ""


def _list_ends(link: SharedLink) -> tuple[set[str], set[str]]:
    return {src for src, _ in link.pairs}, {dst for _, dst in link.pairs}
