"""Checks of `workload.yaml` against the hosts of the scenario."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from laggard.core.errors import Problem
from laggard.core.hosts import (
    MAX_RULES,
    Host,
    check_pattern,
    find_ambiguous_groups,
    select_hosts,
)
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.workloads.specification.churn import faults, turns
from laggard.workloads.specification.datasets import (
    Cifar10,
    Digits,
    ImageFolder,
    OwnDataset,
    Synthetic,
)
from laggard.workloads.strategies.registry import list_churn_strategies
from laggard.workloads.workload import Workload

MAX_WORKERS = 500
"""Most workers of one scenario."""
DEFAULT_HORIZON_S = 24 * 3600.0
"""Seconds after the first step within which events may begin if `stop` has no time limit."""
EVALUATIONS_TO_STOP = 3
DIGITS_TRAIN = 1437
"""Number of training samples of the `digits` dataset."""


def validate_placement(
    workload: Workload, hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each placement pattern that is malformed or matches no host."""
    patterns = list(_list_placement_patterns(workload, source))
    if len(patterns) > MAX_RULES:
        rule = f"{len(patterns)} patterns; a placement may have at most {MAX_RULES}"
        yield source.locate_problem(
            ("placement", "workers"), rule, "use patterns that match several hosts each", ""
        )
        return
    for key, pattern in patterns:
        yield from check_pattern(source, key, pattern, hosts)


def _check_requests(
    workload: Workload, ranks: Sequence[Host], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each request that these hosts, or the named folders, cannot satisfy."""
    if len(ranks) > MAX_WORKERS:
        rule = f"{len(ranks)} workers; one machine runs at most {MAX_WORKERS}"
        yield source.locate_problem(
            ("placement",), rule, "narrow placement.workers or lower placement.per_host", ""
        )
    if workload.batch_size < len(ranks):
        rule = f"each of the {len(ranks)} workers needs at least one sample per step"
        yield source.locate_problem(("batch_size",), rule, f"set it to {len(ranks)} or more")
    layers = sorted({host.layer for host in hosts})
    for name in workload.objective.prices:
        if name.lower() not in (*layers, "gigabyte"):
            near = difflib.get_close_matches(name.lower(), [*layers, "gigabyte"], n=1)
            fix = (
                f"did you mean `{near[0]}`?" if near else f"the layers are {', '.join(layers[:5])}"
            )
            yield source.locate_problem(
                ("objective", "prices", name), "this is neither a layer nor `gigabyte`", fix
            )
    if workload.objective.name == "cost" and not workload.objective.prices:
        rule = "the objective `cost` needs prices, and there are none"
        yield source.locate_problem(
            ("objective",), rule, "give prices, such as {cloud: 1.20, gigabyte: 0.09}"
        )
    if (
        isinstance(workload.dataset, Cifar10 | ImageFolder)
        and not Path(workload.dataset.folder).is_dir()
    ):
        rule = f"there is no folder {workload.dataset.folder}"
        yield source.locate_problem(
            ("dataset", "folder"), rule, "relative paths start at the scenario's folder"
        )
    tokens = isinstance(workload.dataset, Synthetic) and workload.dataset.kind == "tokens"
    if tokens and workload.model != "transformer" and ":" not in workload.model:
        yield source.locate_problem(
            ("model",),
            "this model takes images, and the dataset gives tokens",
            "use the transformer",
        )


def _check_strategy(
    workload: Workload, ranks: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each strategy setting that these workers cannot satisfy."""
    strategy = workload.strategy
    unsuitable = strategy.check_ranks(len(ranks))
    if unsuitable is not None:
        key = ("strategy", unsuitable.key)
        yield source.locate_problem(key, unsuitable.rule, unsuitable.fix)
    if (
        strategy.uses_server or strategy.sync_mode == "asynchronous"
    ) and workload.checkpoint_every is not None:
        rule = (
            f"with {strategy.name} no worker has the whole state of the training, so none writes"
            " checkpoints"
        )
        yield source.locate_problem(
            ("checkpoint_every",), rule, "remove it, or use another strategy"
        )


def _check_churn(
    workload: Workload, ranks: Sequence[Host], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each churn entry that the strategy or the placement does not support."""
    if not workload.churn:
        return
    if not workload.strategy.supports_churn:
        name = workload.strategy.name
        rule = f"under {name} every worker takes part in collectives, so none can leave or join"
        yield source.locate_problem(
            ("churn",),
            rule,
            f"use {', '.join(list_churn_strategies())}, or remove `churn`",
            value="churn",
        )
        return
    if len(workload.churn) > MAX_RULES:
        yield source.locate_problem(
            ("churn",),
            f"{len(workload.churn)} entries; at most {MAX_RULES} are allowed",
            value="",
        )
        return
    planned = turns(workload.churn, hosts, ranks)
    used_entries = {turn.entry for turn in planned}
    entry_problems: list[Problem] = []
    for i, entry in enumerate(workload.churn):
        entry_problems += check_pattern(source, ("churn", i, entry.key), entry.pattern, hosts)
        if i not in used_entries and select_hosts(entry.pattern, hosts):
            fix = "name hosts that placement.workers matches"
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


def get_event_horizon_s(workload: Workload) -> float:
    """Return the seconds after the first step within which events can begin.

    Evaluations pause the training but not the events, so this exceeds the training time.
    """
    return 2 * workload.stop.time_s if workload.stop.time_s else DEFAULT_HORIZON_S


def find_warnings(
    workload: Workload,
    ranks: Sequence[Host],
    hosts: Sequence[Host],
    source: YamlSource,
) -> Iterator[Problem]:
    """Yield a warning for each setting that is allowed but probably a mistake."""
    stop = workload.stop
    for key, pattern in _list_placement_patterns(workload, source):
        for term in find_ambiguous_groups(pattern, hosts):
            rule = f"{term} alone means only its first host, as in E2Clab"
            yield source.locate_problem(
                key, rule, f"to name all its hosts, write {term}.*", value=pattern
            )
    if len(ranks) == 1:
        yield source.locate_problem(
            ("placement",),
            "a single worker never waits for another",
            "place two or more workers",
            value="",
        )
    train = _count_train_samples(workload)
    if train is not None and workload.batch_size > train:
        rule = (
            f"there are only {train} training samples, so every step has fewer than the batch size"
        )
        yield source.locate_problem(("batch_size",), rule, f"set it to {train} or less")
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


def _min_steps_to_accuracy(workload: Workload) -> int | None:
    """Return the fewest steps after which the accuracy can end the run; None if unknown."""
    samples = workload.evaluate_every or _count_train_samples(workload)
    return None if samples is None else -(-EVALUATIONS_TO_STOP * samples // workload.batch_size)


def _count_train_samples(workload: Workload) -> int | None:
    """Return the number of training samples; None if only the dataset itself shows it."""
    if isinstance(workload.dataset, OwnDataset | Cifar10 | ImageFolder):
        return None
    return DIGITS_TRAIN if isinstance(workload.dataset, Digits) else workload.dataset.train


def _list_placement_patterns(
    workload: Workload, source: YamlSource
) -> Iterable[tuple[KeyPath, str]]:
    """Yield each placement pattern with its key path in the file."""
    written = source.at(("placement", "workers"))
    for i, pattern in enumerate(workload.placement.workers):
        yield (
            ("placement", "workers", i) if isinstance(written, list) else ("placement", "workers"),
            pattern,
        )
    if workload.placement.server is not None:
        yield ("placement", "server"), workload.placement.server


def validate(
    workload: Workload, ranks: Sequence[Host], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield the problems of `workload.yaml` once its placement is valid.

    Args:
        workload: the content of the file.
        ranks: the host of every worker, in rank order.
        hosts: every host.
        source: the parsed file.
    """
    yield from _check_requests(workload, ranks, hosts, source)
    yield from _check_strategy(workload, ranks, source)
    yield from _check_churn(workload, ranks, hosts, source)
