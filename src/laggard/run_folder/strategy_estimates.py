"""How long a run would have taken by other strategies: what is asked for, and what its scenario
says of links that its tables do not tell of.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import InputError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from laggard.analysis.replay.simulation.simulated_network import Bottleneck
    from laggard.analysis.replay.what_if.strategy_catalog import AlternativeStrategy
    from laggard.analysis.replay.what_if.strategy_estimate import DeploymentInfo
    from laggard.network_emulation.link_plan import LinkPlan

ALL_STRATEGIES = "all"


def parse_strategies(texts: Sequence[str]) -> tuple[AlternativeStrategy, ...] | None:
    """Strategies as on the command line: a name, or as in `workload.yaml` {name: ..., parameter:
    ...}; None for all.

    Raises:
        InputError: one is no strategy, or not YAML.
    """
    from laggard.analysis.replay.what_if.strategy_catalog import AlternativeStrategy
    from laggard.core.yaml_source import parse_yaml

    if ALL_STRATEGIES in texts:
        return None
    found = []
    for text in texts:
        value = parse_yaml(text, "--strategy").value
        name = value.get("name") if isinstance(value, dict) else value
        if not isinstance(name, str):
            raise InputError(f"{text}: no strategy — give a name, or {{name: local_sgd, steps: 4}}")
        parameters = (
            {key: each for key, each in value.items() if key != "name"}
            if isinstance(value, dict)
            else {}
        )
        numbers = {key: each for key, each in parameters.items() if isinstance(each, int | str)}
        if len(numbers) < len(parameters):
            raise InputError(
                f"{text}: a strategy's parameters are numbers and words here — leave out the others"
            )
        found.append(AlternativeStrategy(name, numbers))
    return tuple(found)


def estimate_strategies(folder: Path, texts: Sequence[str]) -> tuple[JsonValue, str]:
    """A document and a text of how long other strategies would have taken.

    Args:
        folder: of a run.
        texts: see `parse_strategies`.

    Raises:
        InputError: what is asked for is no strategy, or the run does not tell.
    """
    from laggard.analysis.replay.what_if.estimate_text import format_estimates, to_estimate_document
    from laggard.analysis.replay.what_if.strategy_estimate import estimate_strategies
    from laggard.analysis.tables.load_run import load_run

    others, run = parse_strategies(texts), load_run(folder)
    estimates = estimate_strategies(run, others, read_deployment_info(folder))
    if (
        others is not None
        and (unavailable := next((each for each in estimates if each.makespan_s is None), None))
        is not None
    ):
        raise InputError(f"{unavailable.strategy.label}: {unavailable.failure_reason}")
    return to_estimate_document(run, estimates), format_estimates(run, estimates)


def read_deployment_info(folder: Path) -> DeploymentInfo:
    """What the scenario in a run folder says: shared rates, and where a server would be; nothing
    where there is none.

    Raises:
        ScenarioError: it cannot be read.
    """
    from laggard.analysis.replay.what_if.strategy_estimate import DeploymentInfo
    from laggard.scenario.load import load_scenario
    from laggard.workloads.plan import place_server

    if not (folder / "scenario").is_dir():
        return DeploymentInfo()
    scenario = load_scenario(folder / "scenario")
    server = place_server(scenario.workload.placement, scenario.hosts).name
    return DeploymentInfo(list_bottlenecks(scenario.links), server, scenario.shares.get(server))


def list_bottlenecks(links: LinkPlan) -> tuple[Bottleneck, ...]:
    """Access links and shared links, as rates that ways between hosts share."""
    from laggard.analysis.replay.simulation.simulated_network import Bottleneck

    names = [host.name for host in links.hosts]
    found = [Bottleneck(link.name, link.pairs, link.rate_mbps) for link in links.shared]
    for host, access in links.access.items():
        others = [name for name in names if name != host]
        if access.up_mbps is not None:
            found.append(
                Bottleneck(
                    f"{host} up", frozenset((host, other) for other in others), access.up_mbps
                )
            )
        if access.down_mbps is not None:
            found.append(
                Bottleneck(
                    f"{host} down", frozenset((other, host) for other in others), access.down_mbps
                )
            )
    return tuple(found)
