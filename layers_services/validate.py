"""Checks of `layers_services.yaml` and `workflow.yaml` against the hosts that they name."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from laggard.core.errors import Problem
from laggard.core.hosts import (
    Host,
    check_pattern,
)
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.layers_services.model import Workflow

MAX_HOSTS = 500
MAX_ROLES = 10_000


def check_hosts(hosts: Sequence[Host], source: YamlSource) -> Iterator[Problem]:
    """Yield a problem when a scenario has too many hosts or too many roles."""
    if len(hosts) > MAX_HOSTS:
        rule = f"{len(hosts)} hosts, and the local testbed holds at most {MAX_HOSTS}"
        yield source.locate_problem(("layers",), rule, "lower the quantities", value="")
    roles = sum(len(host.roles) for host in hosts)
    if roles > MAX_ROLES:
        rule = f"{roles} roles of all hosts together, and a continuum has at most {MAX_ROLES}"
        yield source.locate_problem(("layers",), rule, "name fewer roles", value="")


def validate_workflow(
    workflow: Workflow, hosts: Sequence[Host], source: YamlSource, own_classes: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield a problem for each pattern of `workflow.yaml` that is malformed or matches no host.

    Services with their own class may register sub-services at deployment, so their patterns cannot
    be checked before.
    """
    if own_classes:
        return
    for i, play in enumerate(workflow.plays):
        yield from check_pattern(source, (i, "hosts"), play.hosts, hosts)
        for j, dependency in enumerate(play.depends_on):
            key: KeyPath = (i, "depends_on", j, "service_selector")
            yield from check_pattern(source, key, dependency.service_selector, hosts)
