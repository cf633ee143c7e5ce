"""Checks of `layers_services.yaml` and `workflow.yaml` against the hosts that they name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from laggard.core.corrections.host_patterns import check_pattern
from laggard.core.errors import Problem
from laggard.core.hosts import Host
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.layers_services.model import Workflow

# Limit of machines that are emulated or reserved; `model.MAX_HOSTS` applies to every testbed.
MAX_HOSTS = 500
MAX_ROLES = 10_000


def check_hosts(
    hosts: Sequence[Host], source: YamlSource, most_hosts: int = MAX_HOSTS
) -> Iterator[Problem]:
    """Yield a problem if a scenario has too many hosts or too many roles."""
    if len(hosts) > most_hosts:
        rule = f"the scenario has {len(hosts)} hosts and this testbed supports at most {most_hosts}"
        advice = "lower `quantity` or `repeat`, or run federated clients with --on virtual"
        yield source.locate_problem(("layers",), rule, advice, value="")
    roles = sum(len(host.roles) for host in hosts)
    if roles > MAX_ROLES and most_hosts == MAX_HOSTS:
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
