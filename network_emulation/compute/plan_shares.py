"""Planned CPU share of every host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from laggard.core.errors import ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import YamlSource
from laggard.network_emulation.device_profiles import draw_device_shares
from laggard.network_emulation.links.plan_links import (
    UNPLACED_HETEROGENEITY,
    UNPLACED_NETWORK,
    Draft,
)
from laggard.network_emulation.model import Heterogeneity, HostRule, RandomHostEvent, TimedHostEvent


def plan_shares(
    heterogeneity: Heterogeneity, hosts: Sequence[Host], source: YamlSource = UNPLACED_HETEROGENEITY
) -> Mapping[str, float]:
    """Return the virtual CPU share of every host, as a fraction of one core.

    A host that no entry names has 1.0; later entries win.

    Raises:
        ScenarioError: if a pattern matches no host.
    """
    draft = Draft(tuple(hosts), UNPLACED_NETWORK, source)
    shares = {host.name: 1.0 for host in hosts}
    for i, rule in enumerate(heterogeneity.rules):
        if isinstance(rule, HostRule):
            chosen = draft.select(source, ("deterministic", i, "hosts"), rule.hosts)
            names = [host.name for host in chosen]
            if rule.cpu is not None:
                shares.update(dict.fromkeys(names, rule.cpu))
            elif rule.device is not None:
                drawn = draw_device_shares(rule.device, len(names), rule.seed)
                shares.update(zip(names, drawn, strict=True))
    for i, event in enumerate(heterogeneity.events):
        if isinstance(event, TimedHostEvent | RandomHostEvent):
            draft.select(source, ("dynamic", i, "hosts"), event.hosts)
    if draft.problems:
        raise ScenarioError(tuple(draft.problems))
    return shares
