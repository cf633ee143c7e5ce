"""Checks of `layers_services.yaml` and `workflow.yaml` against the hosts that they name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from laggard.core.corrections.host_patterns import check_pattern
from laggard.core.errors import Problem
from laggard.core.hosts import Host
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.layers_services.model import Workflow

# Limit of the local testbed only; `model.MAX_HOSTS` applies to every testbed.
MAX_HOSTS = 500
MAX_ROLES = 10_000


def check_hosts(hosts: Sequence[Host], source: YamlSource) -> Iterator[Problem]:
    """Yield a problem if a scenario has too many hosts or too many roles."""
    if len(hosts) > MAX_HOSTS:
        rule = (
            f"the scenario has {len(hosts)} hosts and the local testbed supports at most"
            f" {MAX_HOSTS}"
        )
        yield source.locate_problem(("layers",), rule, "lower `quantity` or `repeat`", value="")
    roles = sum(len(host.roles) for host in hosts)
    if roles > MAX_ROLES:
        rule = f"the hosts have {roles} roles in total and the maximum is {MAX_ROLES}"
        yield source.locate_problem(("layers",), rule, "remove roles", value="")


def validate_workflow(
    workflow: Workflow, hosts: Sequence[Host], source: YamlSource, own_classes: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield a problem for each pattern of `workflow.yaml` that is malformed or matches no host.

    Args:
        workflow: the validated workflow
        hosts: all hosts of the scenario
        source: location of the workflow in its file
        own_classes: services that a user's own class deploys; such a class may register
            sub-services at deployment, so with any of them no pattern is checked
    """
    if own_classes:
        return
    for i, play in enumerate(workflow.plays):
        yield from check_pattern(source, (i, "hosts"), play.hosts, hosts)
        for j, dependency in enumerate(play.depends_on):
            key: KeyPath = (i, "depends_on", j, "service_selector")
            yield from check_pattern(source, key, dependency.service_selector, hosts)
