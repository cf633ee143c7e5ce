"""Estimates of a run's duration under other strategies.

This module parses the requested strategies, and adds the scenario's facts about links that the
run's tables do not contain.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.errors import InputError

if TYPE_CHECKING:
    from pydantic import JsonValue

    from laggard.analysis.replay.what_if.strategy_estimate import DeploymentInfo
    from laggard.core.simulation.network import Bottleneck
    from laggard.core.simulation.strategies.catalog import AlternativeStrategy
    from laggard.network_emulation.link_plan import LinkPlan

ALL_STRATEGIES = "all"
MAX_DIGITS = 9


def parse_strategies(texts: Sequence[str]) -> tuple[AlternativeStrategy, ...] | None:
    """Parse strategies from the command line.

    Args:
        texts: each is a name, or `{name: ..., parameter: ...}` as in `workload.yaml`.

    Returns:
        The strategies; None for all strategies.

    Raises:
        InputError: a text is not a strategy, or not YAML.
    """
    from laggard.core.simulation.strategies.catalog import AlternativeStrategy
    from laggard.core.yaml_source import parse_yaml

    if ALL_STRATEGIES in texts:
        return None
    found = []
    for text in texts:
        value = parse_yaml(text, "--strategy").value
        name = value.get("name") if isinstance(value, dict) else value
        if not isinstance(name, str):
            raise InputError(
                f"{text}: not a strategy — give a name, or {{name: local_sgd, steps: 4}}"
            )
        parameters = (
            {str(key): each for key, each in value.items() if key != "name"}
            if isinstance(value, dict)
            else {}
        )
        numbers = {key: each for key, each in parameters.items() if isinstance(each, int | str)}
        if len(numbers) < len(parameters):
            raise InputError(
                f"{text}: here a strategy's parameters must be numbers or words — leave out the"
                " others"
            )
        found.append(AlternativeStrategy(name, numbers))
    return tuple(found)


def parse_workers(texts: Sequence[str]) -> dict[str, int]:
    """Parse numbers of workers by tier, each as `edge=16`.

    Raises:
        InputError: a text is not a tier and a number, or names a tier again.
    """
    found: dict[str, int] = {}
    for text in texts:
        tier, _, number = text.partition("=")
        if not tier or not number.isascii() or not number.isdigit() or len(number) > MAX_DIGITS:
            raise InputError(f"--workers {text}: not a tier and a number — write --workers edge=16")
        if tier in found:
            raise InputError(f"--workers {text}: {tier} has a number already — give one of both")
        found[tier] = int(number)
    return found


def estimate_strategies(
    folder: Path, texts: Sequence[str], worker_texts: Sequence[str] = ()
) -> tuple[JsonValue, str]:
    """Estimate how long the run would have taken with other strategies or numbers of workers.

    Args:
        folder: run folder, or a trace of another tool.
        texts: see `parse_strategies`; the run's own strategy if there are none.
        worker_texts: see `parse_workers`.

    Returns:
        A JSON document and a text.

    Raises:
        InputError: a text is not a strategy, or the run does not contain the necessary data.
    """
    from laggard.analysis.formats.registry import open_run
    from laggard.analysis.replay.what_if.estimate_text import format_estimates, to_estimate_document
    from laggard.analysis.replay.what_if.strategy_estimate import (
        estimate_strategies,
        get_own_strategy,
    )

    run, workers = open_run(folder), parse_workers(worker_texts)
    others = parse_strategies(texts) if texts else (get_own_strategy(run),)
    estimates = estimate_strategies(run, others, read_deployment_info(folder), workers)
    if (
        others is not None
        and (unavailable := next((each for each in estimates if each.makespan_s is None), None))
        is not None
    ):
        raise InputError(f"{unavailable.strategy.label}: {unavailable.failure_reason}")
    return (
        to_estimate_document(run, estimates, workers),
        format_estimates(run, estimates, workers),
    )


def read_deployment_info(folder: Path) -> DeploymentInfo:
    """Read the shared rates and the server's host from the scenario in a run folder.

    The result is empty if the folder contains no scenario.

    Raises:
        ScenarioError: the scenario cannot be read.
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
    """Return access links and shared links as rates that several host pairs share."""
    from laggard.core.simulation.network import Bottleneck

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
