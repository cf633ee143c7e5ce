"""What only shows when the files of a scenario are seen together: contradictions, and what was
probably not meant.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.errors import Problem
from laggard.core.hosts import Host, find_ambiguous_groups, find_pattern_error, select_hosts
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.layers_services.model import Workflow
from laggard.network_emulation.dynamics.expand import MAX_CHANGES
from laggard.network_emulation.model import (
    Heterogeneity,
    HostRule,
    Network,
    RandomHostEvent,
    RandomLinkEvent,
    SharedRule,
    TimedHostEvent,
    TimedLinkEvent,
)
from laggard.workloads.specification.churn import faults, turns
from laggard.workloads.specification.datasets import (
    Cifar10,
    Digits,
    ImageFolder,
    OwnDataset,
    Synthetic,
)
from laggard.workloads.strategies.base.graph import find_neighbors
from laggard.workloads.strategies.peer.hop import HopParameters
from laggard.workloads.strategies.registry import list_churn_strategies
from laggard.workloads.strategies.server.backup_workers import BackupWorkersParameters
from laggard.workloads.workload import Workload

MAX_HOSTS = 500
MAX_WORKERS = 500
MAX_ROLES = 10_000
MAX_RULES = 1000
MAX_PAIRS = 500_000
MIN_SHARE = 0.001
DEFAULT_HORIZON_S = 24 * 3600.0
EVALUATIONS_TO_STOP = 3
DIGITS_TRAIN = 1437


@dataclass(frozen=True)
class ScenarioSources:
    """The parsed files that problems are located in."""

    layers_services: YamlSource
    network: YamlSource
    workflow: YamlSource
    heterogeneity: YamlSource
    workload: YamlSource


def check_hosts(hosts: Sequence[Host], source: YamlSource) -> Iterator[Problem]:
    """More hosts than one machine holds, or more roles than any pattern could be matched
    against.
    """
    if len(hosts) > MAX_HOSTS:
        rule = f"{len(hosts)} hosts, and the local testbed holds at most {MAX_HOSTS}"
        yield source.locate_problem(("layers",), rule, "lower the quantities", value="")
    roles = sum(len(host.roles) for host in hosts)
    if roles > MAX_ROLES:
        rule = f"{roles} roles of all hosts together, and a continuum has at most {MAX_ROLES}"
        yield source.locate_problem(("layers",), rule, "name fewer roles", value="")


def check_rules(
    network: Network, heterogeneity: Heterogeneity, hosts: Sequence[Host], sources: ScenarioSources
) -> Iterator[Problem]:
    """More rules, or more host pairs in them, than planning can take; and patterns that are
    none.
    """
    entries = (
        (sources.network, "networks", [_list_patterns(rule) for rule in network.rules]),
        (
            sources.heterogeneity,
            "deterministic",
            [_list_patterns(rule) for rule in heterogeneity.rules],
        ),
        (
            sources.heterogeneity,
            "dynamic",
            [_list_patterns(event) for event in heterogeneity.events],
        ),
    )
    sizes: dict[str, int] = {}
    pairs = 0
    for source, section, patterns_by_entry in entries:
        if len(patterns_by_entry) > MAX_RULES:
            rule = f"{len(patterns_by_entry)} entries, and a file has at most {MAX_RULES}"
            yield source.locate_problem((section,), rule, "use wider patterns", "")
            continue
        for i, patterns in enumerate(patterns_by_entry):
            for key, pattern in patterns.items():
                yield from _check_pattern_syntax(source, (section, i, *key), pattern)
                if pattern not in sizes:
                    sizes[pattern] = len(select_hosts(pattern, hosts))
            pairs += (
                math.prod(sizes[pattern] for pattern in patterns.values())
                if len(patterns) == 2
                else 0
            )
    if pairs > MAX_PAIRS:
        rule = f"the rules name {pairs} host pairs, and planning takes at most {MAX_PAIRS}"
        yield sources.network.locate_problem(("networks",), rule, "use fewer hosts or rules", "")


def check_workflow(
    workflow: Workflow, hosts: Sequence[Host], source: YamlSource, own_classes: Collection[str] = ()
) -> Iterator[Problem]:
    """Patterns of `workflow.yaml` that are none or name no host.

    Services with a class of their own may register sub-services when they are deployed: then who a
    pattern names shows only there.
    """
    if own_classes:
        return
    for i, play in enumerate(workflow.plays):
        yield from _check_pattern(source, (i, "hosts"), play.hosts, hosts)
        for j, dependency in enumerate(play.depends_on):
            key: KeyPath = (i, "depends_on", j, "service_selector")
            yield from _check_pattern(source, key, dependency.service_selector, hosts)


def check_placement(
    workload: Workload, hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Patterns of the placement that are none or name no host."""
    patterns = list(_list_placement_patterns(workload, source))
    if len(patterns) > MAX_RULES:
        rule = f"{len(patterns)} patterns, and a placement has at most {MAX_RULES}"
        yield source.locate_problem(("placement", "workers"), rule, "use wider patterns", "")
        return
    for key, pattern in patterns:
        yield from _check_pattern(source, key, pattern, hosts)


def check_workload(
    workload: Workload, ranks: Sequence[Host], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """What the workload asks for and these hosts, or the folders it names, cannot give."""
    if len(ranks) > MAX_WORKERS:
        rule = f"{len(ranks)} workers, and one machine runs at most {MAX_WORKERS}"
        yield source.locate_problem(
            ("placement",), rule, "narrow placement.workers or lower placement.per_host", ""
        )
    if workload.batch_size < len(ranks):
        rule = f"every one of the {len(ranks)} workers needs a sample in each step"
        yield source.locate_problem(("batch_size",), rule, f"make it {len(ranks)} or more")
    layers = sorted({host.layer for host in hosts})
    for name in workload.objective.prices:
        if name.lower() not in (*layers, "gigabyte"):
            near = difflib.get_close_matches(name.lower(), [*layers, "gigabyte"], n=1)
            fix = (
                f"did you mean `{near[0]}`?" if near else f"the layers are {', '.join(layers[:5])}"
            )
            yield source.locate_problem(
                ("objective", "prices", name), "a price is of a layer, or of a gigabyte", fix
            )
    if workload.objective.name == "cost" and not workload.objective.prices:
        rule = "nothing has a price, so that no run costs anything"
        yield source.locate_problem(
            ("objective",), rule, "give prices, such as {cloud: 1.20, gigabyte: 0.09}"
        )
    if (
        isinstance(workload.dataset, Cifar10 | ImageFolder)
        and not Path(workload.dataset.folder).is_dir()
    ):
        rule = f"there is no folder {workload.dataset.folder}"
        yield source.locate_problem(
            ("dataset", "folder"), rule, "a relative one begins at the scenario's folder"
        )
    tokens = isinstance(workload.dataset, Synthetic) and workload.dataset.kind == "tokens"
    if tokens and workload.model != "transformer" and ":" not in workload.model:
        yield source.locate_problem(
            ("model",),
            "this model takes images, and the dataset gives tokens",
            "use the transformer",
        )


def check_strategy(
    workload: Workload, ranks: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """What a strategy cannot do with these workers."""
    strategy = workload.strategy
    if isinstance(strategy, BackupWorkersParameters) and strategy.backups >= len(ranks):
        rule = f"of {len(ranks)} workers one gradient at least is needed in each step"
        yield source.locate_problem(
            ("strategy", "backups"), rule, f"make it {len(ranks) - 1} or less"
        )
    if isinstance(strategy, HopParameters) and strategy.backups:
        neighbor_count = len(find_neighbors(strategy.graph, range(len(ranks)), 0))
        if strategy.backups >= neighbor_count:
            rule = (
                f"each of {len(ranks)} workers has {neighbor_count} neighbours, and waits for one of them"
                " at least"
            )
            yield source.locate_problem(
                ("strategy", "backups"), rule, f"make it {max(neighbor_count - 1, 0)} or less"
            )
    if (strategy.uses_server or strategy.pace == "own") and workload.checkpoint_every is not None:
        rule = (
            f"with {strategy.name} no worker has all of the training's state, and so none writes"
            " checkpoints"
        )
        yield source.locate_problem(
            ("checkpoint_every",), rule, "remove it, or use another strategy"
        )


def check_churn(
    workload: Workload, ranks: Sequence[Host], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Workers that are to leave or join where the strategy cannot bear it, or that cannot because
    of where they are then.
    """
    if not workload.churn:
        return
    if not workload.strategy.supports_churn:
        name = workload.strategy.name
        rule = f"under {name} every worker takes part in collectives, so none can leave or join"
        yield source.locate_problem(
            ("churn",),
            rule,
            f"use {', '.join(list_churn_strategies())}, or remove it",
            value="churn",
        )
        return
    if len(workload.churn) > MAX_RULES:
        yield source.locate_problem(
            ("churn",),
            f"{len(workload.churn)} entries, and there are at most {MAX_RULES}",
            value="",
        )
        return
    planned = turns(workload.churn, hosts, ranks)
    used_entries = {turn.entry for turn in planned}
    entry_problems: list[Problem] = []
    for i, entry in enumerate(workload.churn):
        entry_problems += _check_pattern(source, ("churn", i, entry.key), entry.pattern, hosts)
        if i not in used_entries and select_hosts(entry.pattern, hosts):
            fix = "name hosts of placement.workers"
            entry_problems.append(
                source.locate_problem(
                    ("churn", i, entry.key), "no worker is on any of these hosts", fix
                )
            )
    yield from entry_problems
    if not entry_problems:
        for fault in faults(planned, ranks):
            key: KeyPath = ("churn", fault.entry, workload.churn[fault.entry].key)
            yield source.locate_problem(key, fault.rule, fault.fix)


def check_shares(heterogeneity: Heterogeneity, source: YamlSource) -> Iterator[Problem]:
    """CPU shares below what the kernel can hold."""
    rule = (
        f"a cpu share is at least {100 * MIN_SHARE:g}%: its quota is refilled every 1 ms / share,"
        " at most every second"
    )
    sections = (("deterministic", heterogeneity.rules), ("dynamic", heterogeneity.events))
    for section, entries in sections:
        for i, entry in enumerate(entries):
            share = getattr(entry, "cpu", None)
            if share is not None and share < MIN_SHARE:
                yield source.locate_problem((section, i, "cpu"), rule, "raise it")


def get_event_horizon_s(workload: Workload) -> float:
    """Seconds after the first step within which events can begin: evaluations pause the training,
    not the events.
    """
    return 2 * workload.stop.time_s if workload.stop.time_s else DEFAULT_HORIZON_S


def check_events(
    heterogeneity: Heterogeneity, workload: Workload, hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Random events that would come too often to be applied."""
    horizon_s = get_event_horizon_s(workload)
    for i, event in enumerate(heterogeneity.events):
        if isinstance(event, RandomHostEvent | RandomLinkEvent):
            targets = (
                len(select_hosts(event.hosts, hosts)) if isinstance(event, RandomHostEvent) else 1
            )
            changes = 2 * targets * horizon_s / event.random.every_s
            if changes > MAX_CHANGES:
                rule = (
                    f"this makes {changes:.0f} changes in {horizon_s:g} s, and a run has at most"
                    f" {MAX_CHANGES}"
                )
                yield source.locate_problem(
                    ("dynamic", i, "random", "every"), rule, "lengthen the period"
                )


def find_workload_warnings(
    workload: Workload,
    heterogeneity: Heterogeneity,
    ranks: Sequence[Host],
    hosts: Sequence[Host],
    sources: ScenarioSources,
) -> Iterator[Problem]:
    """What is allowed and probably not meant."""
    source, stop = sources.workload, workload.stop
    for key, pattern in _list_placement_patterns(workload, source):
        for term in find_ambiguous_groups(pattern, hosts):
            rule = f"{term} alone is its first host, as in E2Clab"
            yield source.locate_problem(key, rule, f"for all of them write {term}.*", value=pattern)
    if len(ranks) == 1:
        yield source.locate_problem(
            ("placement",), "one worker has nobody to wait for", "place more", value=""
        )
    train = _count_train_samples(workload)
    if train is not None and workload.batch_size > train:
        rule = (
            f"there are only {train} training samples, so every step has fewer than the batch size"
        )
        yield source.locate_problem(("batch_size",), rule, f"take {train} or less")
    least = _min_steps_to_accuracy(workload)
    if (
        stop.accuracy is not None
        and stop.steps is not None
        and least is not None
        and stop.steps < least
    ):
        rule = (
            f"{stop.steps} steps end before {EVALUATIONS_TO_STOP} evaluations, so the accuracy"
            " cannot end the run"
        )
        yield source.locate_problem(
            ("stop", "steps"),
            rule,
            f"allow {least} steps or more, or lower evaluate_every",
            value="",
        )
    if stop.time_s is not None:
        yield from _find_late_entries(workload, heterogeneity, stop.time_s, sources)


def _find_late_entries(
    workload: Workload, heterogeneity: Heterogeneity, stop_time_s: float, sources: ScenarioSources
) -> Iterator[Problem]:
    """What is to happen when training is over."""
    rule, fix = (
        f"training stops after {stop_time_s:g} s, before this begins",
        "begin earlier, or raise stop.time",
    )
    for i, entry in enumerate(workload.churn):
        if entry.at_s >= stop_time_s:
            yield sources.workload.locate_problem(("churn", i, "at"), rule, fix)
    for i, event in enumerate(heterogeneity.events):
        if isinstance(event, TimedHostEvent | TimedLinkEvent) and event.at_s >= stop_time_s:
            yield sources.heterogeneity.locate_problem(("dynamic", i, "at"), rule, fix)


def _min_steps_to_accuracy(workload: Workload) -> int | None:
    samples = workload.evaluate_every or _count_train_samples(workload)
    return None if samples is None else -(-EVALUATIONS_TO_STOP * samples // workload.batch_size)


def _count_train_samples(workload: Workload) -> int | None:
    if isinstance(workload.dataset, OwnDataset | Cifar10 | ImageFolder):
        return None
    return DIGITS_TRAIN if isinstance(workload.dataset, Digits) else workload.dataset.train


def _check_pattern(
    source: YamlSource, key: KeyPath, pattern: str, hosts: Sequence[Host]
) -> Iterator[Problem]:
    yield from _check_pattern_syntax(source, key, pattern)
    if find_pattern_error(pattern) is None and not select_hosts(pattern, hosts):
        layers = sorted({host.layer for host in hosts})
        fix = f"the layers are {', '.join(layers[:5])}; write one as {layers[0]}.*"
        yield source.locate_problem(key, "this pattern matches no host", fix, value=pattern)


def _check_pattern_syntax(source: YamlSource, key: KeyPath, pattern: str) -> Iterator[Problem]:
    fault = find_pattern_error(pattern)
    if fault is not None:
        yield source.locate_problem(key, fault, "write it like edge.*", value=pattern[:60])


def _list_placement_patterns(
    workload: Workload, source: YamlSource
) -> Iterable[tuple[KeyPath, str]]:
    written = source.at(("placement", "workers"))
    for i, pattern in enumerate(workload.placement.workers):
        yield (
            ("placement", "workers", i) if isinstance(written, list) else ("placement", "workers"),
            pattern,
        )
    if workload.placement.server is not None:
        yield ("placement", "server"), workload.placement.server


def _list_patterns(entry: object) -> Mapping[KeyPath, str]:
    """The patterns at the two ends of what an entry constrains, or the one of its hosts, by their
    place in the entry.
    """
    if isinstance(entry, SharedRule):
        return {("between", 0): entry.between[0], ("between", 1): entry.between[1]}
    keys = (
        ("hosts",)
        if isinstance(entry, HostRule | TimedHostEvent | RandomHostEvent)
        else ("src", "dst")
    )
    return {(key,): getattr(entry, key) for key in keys}
