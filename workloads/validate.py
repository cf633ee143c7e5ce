"""Checks of `workload.yaml` against the hosts of the scenario."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from laggard.core.corrections.host_patterns import check_pattern, warn_ambiguous_groups
from laggard.core.corrections.names import find_near_name
from laggard.core.edits import Correction, remove_key, rename_key, write_value
from laggard.core.errors import Problem
from laggard.core.hosts import (
    MAX_RULES,
    Host,
    select_hosts,
)
from laggard.core.yaml_source import KeyPath, YamlSource, YamlValue
from laggard.workloads.specification.churn import Turn, faults, turns
from laggard.workloads.specification.dataset_problems import find_dataset_problems
from laggard.workloads.specification.datasets import (
    Cifar10,
    Digits,
    ImageFolder,
    Mnist5k,
    OwnDataset,
)
from laggard.workloads.specification.placement_problems import list_placement_patterns
from laggard.workloads.specification.stream import StreamSpec
from laggard.workloads.strategies.base.parameters import (
    BalancedParameters,
    CompressibleParameters,
    Parameters,
)
from laggard.workloads.strategies.collective.hierarchical import HierarchicalParameters
from laggard.workloads.strategies.federated.parameters import FederatedParameters
from laggard.workloads.strategies.registry import list_churn_strategies
from laggard.workloads.streams.validate_stream import (
    find_rehearsal_warnings,
    validate_births,
    validate_rehearsal,
    validate_stream,
)
from laggard.workloads.workload import Workload

MAX_WORKERS = 500
"""Most workers of one scenario."""
DEFAULT_HORIZON_S = 24 * 3600.0
"""Seconds after the first step within which events may begin if `stop` has no time limit."""
EVALUATIONS_TO_STOP = 3
DIGITS_TRAIN = 1437
MNIST_5K_TRAIN = 4000
"""Numbers of training samples of the datasets."""


def _check_requests(
    workload: Workload,
    ranks: Sequence[Host],
    hosts: Sequence[Host],
    source: YamlSource,
    most_workers: int,
) -> Iterator[Problem]:
    """Yield a problem for each request that these hosts, or the named folders, cannot satisfy."""
    if len(ranks) > most_workers:
        rule = f"{len(ranks)} workers; one machine runs at most {most_workers}"
        yield source.locate_problem(
            ("placement",),
            rule,
            "narrow placement.workers or lower placement.per_host",
            "placement",
        )
    if workload.local_batch is None and workload.batch_size < len(ranks):
        rule = f"each of the {len(ranks)} workers needs at least one sample per step"
        text = f"set it to {len(ranks)} or more"
        yield source.locate_problem(
            ("batch_size",), rule, write_value(("batch_size",), len(ranks), text)
        )
    layers = sorted({host.layer for host in hosts})
    for name in workload.objective.prices:
        if name.lower() not in (*layers, "gigabyte"):
            key: KeyPath = ("objective", "prices", name)
            yield source.locate_problem(
                key,
                "this is neither a layer nor `gigabyte`",
                _correct_price(workload.objective.prices, key, name, layers),
            )
    if workload.objective.name == "cost" and not workload.objective.prices:
        rule = "the objective `cost` needs prices, and there are none"
        text = f"give prices, such as `prices: {{{layers[0]}: 1.20, gigabyte: 0.09}}`"
        prices: YamlValue = {"name": "cost", "prices": {layers[0]: 1.2, "gigabyte": 0.09}}
        yield source.locate_problem(("objective",), rule, write_value(("objective",), prices, text))
    yield from find_dataset_problems(workload.dataset, {("model",): workload.model}, source)


def _check_strategy(
    workload: Workload, ranks: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each strategy setting that these workers cannot satisfy."""
    strategy = workload.strategy
    unsuitable = strategy.check_ranks(len(ranks))
    if unsuitable is not None:
        key = ("strategy", unsuitable.key)
        advice = write_value(key, unsuitable.most, unsuitable.fix)
        yield source.locate_problem(key, unsuitable.rule, advice)
    if (
        strategy.uses_server or strategy.divides_model or strategy.sync_mode == "asynchronous"
    ) and workload.checkpoint_every is not None:
        rule = (
            f"with {strategy.name} no worker has the whole state of the training, so none writes"
            " checkpoints"
        )
        place = ("checkpoint_every",)
        advice = remove_key(place, "remove it, or use another strategy")
        yield source.locate_problem(place, rule, advice)


def _check_clients(
    workload: Workload, ranks: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem if samples are given to workers that have none of their own."""
    births = workload.births
    if births is None:
        return
    if workload.local_batch is None:
        rule = f"with {workload.strategy.name} workers share each batch and own no samples"
        advice = remove_key(("births",), "remove it, or use `strategy: federated`")
        yield source.locate_problem(("births",), rule, advice, value="births")
    layers = [*dict.fromkeys(host.layer for host in ranks)]
    yield from validate_births(births, ("births",), workload.dataset, layers, source)


def _check_client_patterns(
    strategy: Parameters, ranks: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each pattern of clients that matches none."""
    if not isinstance(strategy, FederatedParameters):
        return
    tokens = strategy.tokens
    free_riders = () if tokens is None else enumerate(tokens.free_riders)
    patterns: list[tuple[KeyPath, str]] = [
        *((("energy", each), each) for each in strategy.energy),
        *((("tokens", "free_riders", i), each) for i, each in free_riders),
        *((("tokens", "claims", each), each) for each in (tokens.claims if tokens else ())),
    ]
    for key, pattern in patterns:
        yield from check_pattern(source, ("strategy", *key), pattern, ranks)


def find_resume_obstacle(strategy: Parameters) -> tuple[str, str] | None:
    """Return why a training cannot go on from a checkpoint, and a fix; None if it can."""
    if not strategy.resumable:
        return (
            f"a checkpoint has one worker's state, and with {strategy.name} others have their own",
            "use allreduce or ring_allreduce",
        )
    if isinstance(strategy, CompressibleParameters) and strategy.compress is not None:
        return (
            "a checkpoint does not have what compression has left out so far",
            "remove strategy.compress",
        )
    if isinstance(strategy, BalancedParameters) and strategy.balanced_batches is not None:
        return (
            "a checkpoint does not have the speeds by which batches are balanced",
            "remove strategy.balanced_batches",
        )
    return None


def _check_resumption(workload: Workload, source: YamlSource) -> Iterator[Problem]:
    """Yield a problem if the training cannot go on from a checkpoint, or begin with weights."""
    if workload.initial_weights is not None and not Path(workload.initial_weights).is_file():
        yield source.locate_problem(
            ("initial_weights",),
            f"there is no file {workload.initial_weights}",
            "give the weights.pt of a run with `save_weights`",
        )
    if workload.resume is None:
        return
    if workload.initial_weights is not None:
        yield source.locate_problem(
            ("initial_weights",), "a checkpoint has weights of its own", "remove one of both keys"
        )
    obstacle = find_resume_obstacle(workload.strategy)
    if obstacle is not None:
        rule, fix = obstacle
        yield source.locate_problem(("resume",), rule, f"{fix}, or remove resume")
    if not Path(workload.resume).is_file():
        yield source.locate_problem(
            ("resume",),
            f"there is no file {workload.resume}",
            "give the checkpoint.pt of a run with `checkpoint_every`",
        )


def _check_held_samples(workload: Workload, source: YamlSource) -> Iterator[Problem]:
    """Yield a problem if hosts cannot hold parts of the training set."""
    strategy = workload.strategy
    if workload.held_samples is None:
        return
    reasons = {
        "use allreduce": not isinstance(strategy, BalancedParameters)
        or strategy.uses_server
        or strategy.peer_to_peer,
        "remove strategy.balanced_batches": isinstance(strategy, BalancedParameters)
        and strategy.balanced_batches is not None,
        "remove stream": workload.stream is not None,
        "remove resume": workload.resume is not None,
        "remove samples": workload.samples != "stored",
        "use a dataset of the package": isinstance(workload.dataset, ImageFolder | OwnDataset),
    }
    for fix in (fix for fix, applies in reasons.items() if applies):
        rule = "hosts hold parts of a training set in arrays, for ranks that take the same steps"
        advice = remove_key(("held_samples",), f"{fix}, or remove held_samples")
        yield source.locate_problem(("held_samples",), rule, advice, value="held_samples")


def _check_stream(
    workload: Workload, ranks: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem if the samples of a stream cannot arrive so, or old ones cannot be kept."""
    strategy, stream = workload.strategy, workload.stream
    if stream is not None:
        if strategy.sync_mode == "asynchronous":
            yield source.locate_problem(
                ("stream",),
                f"with {strategy.name} each worker takes steps of its own, so fast workers would be"
                " in later tasks than slow ones",
                "use allreduce, parameter_server or another strategy in lockstep, or remove stream",
            )
        layers = [*dict.fromkeys(host.layer for host in ranks)]
        yield from validate_stream(stream, workload.dataset, layers, source)
        yield from _check_stream_length(workload, stream, source)
        is_balanced = isinstance(strategy, BalancedParameters) and strategy.balanced_batches
        if is_balanced and (stream.births is not None or stream.arrivals):
            rule = "samples that are born at a worker cannot be given to a faster one"
            place = "arrivals" if stream.births is None else "births"
            fix = f"remove balanced_batches, or stream.{place}"
            yield source.locate_problem(("strategy", "balanced_batches"), rule, fix)
        if workload.resume is not None:
            rule = "accuracies on earlier tasks are not in a checkpoint"
            yield source.locate_problem(("resume",), rule, "remove it, or stream")
    if workload.rehearsal is not None:
        yield from validate_rehearsal(workload.rehearsal, stream, workload.dataset, source)
        if workload.rehearsal.exchange == "global" and (
            strategy.uses_server or strategy.peer_to_peer
        ):
            rule = f"with {strategy.name} workers have no group of torch that samples can travel in"
            key = ("rehearsal", "exchange")
            yield source.locate_problem(key, rule, "use local, or another strategy")
    yield from _check_deferral(workload, source)


def _check_stream_length(
    workload: Workload, stream: StreamSpec, source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem if a training certainly has more steps than its stream.

    Every pass of a task may end with a smaller batch. How many samples a task has is known when the
    samples are read, and a worker then refuses what is too long by less.
    """
    steps, samples = workload.stop.steps, _count_train_samples(workload)
    if steps is None or samples is None:
        return
    tasks = len(stream.classes or ()) or stream.tasks
    most = stream.passes * (samples // min(workload.batch_size, samples) + tasks)
    if steps > most:
        key = ("stop", "steps")
        rule = f"the stream ends before: it has {most} steps at most"
        advice = write_value(key, most, "allow fewer steps, or give more passes")
        yield source.locate_problem(key, rule, advice)


def _check_deferral(workload: Workload, source: YamlSource) -> Iterator[Problem]:
    """Yield a problem if averages are deferred by what the workload does not have."""
    strategy = workload.strategy
    deferral = strategy.defer if isinstance(strategy, HierarchicalParameters) else None
    if deferral is None:
        return
    key = ("strategy", "defer")
    if workload.stream is None:
        rule = "averages are deferred to the ends of tasks, and without a stream there are none"
        yield source.locate_problem(key, rule, "add `stream`, or use wan_steps")
    elif workload.rehearsal is None and deferral.name == "measured":
        rule = "forgetting is measured on old samples, and the workload keeps none"
        yield source.locate_problem(key, rule, "add `rehearsal`, or use task_ends")
    period = ("strategy", "wan_steps")
    if source.at(period) is not None:
        rule = "deferred averages have no fixed period"
        advice = remove_key(period, "remove wan_steps, or defer")
        yield source.locate_problem(period, rule, advice)


def _check_churn(
    workload: Workload, ranks: Sequence[Host], hosts: Sequence[Host], source: YamlSource
) -> Iterator[Problem]:
    """Yield a problem for each churn entry that the strategy or the placement does not support."""
    if not workload.churn_entries:
        return
    if not workload.strategy.supports_churn:
        name = workload.strategy.name
        rule = f"under {name} every worker takes part in collectives, so none can leave or join"
        yield source.locate_problem(
            ("churn",),
            rule,
            remove_key(("churn",), f"use {', '.join(list_churn_strategies())}, or remove `churn`"),
            value="churn",
        )
        return
    planned = turns(workload.churn_entries, hosts, ranks)
    written = has_written_entries(source)
    problems = [*_check_written_entries(workload, planned, ranks, hosts, source)] if written else []
    yield from problems
    if problems:
        return
    for fault in faults(planned, ranks):
        if not written:
            yield source.locate_problem(("churn",), fault.rule, fault.fix, value="churn")
            continue
        key: KeyPath = ("churn", fault.entry, workload.churn_entries[fault.entry].key)
        advice = remove_key(("churn", fault.entry), fault.fix)
        yield source.locate_problem(key, fault.rule, advice)


def has_written_entries(source: YamlSource) -> bool:
    """Return whether the entries of `churn` are in the file, and not drawn or recorded."""
    return isinstance(source.value, Mapping) and isinstance(source.value.get("churn"), Sequence)


def _check_written_entries(
    workload: Workload,
    planned: Sequence[Turn],
    ranks: Sequence[Host],
    hosts: Sequence[Host],
    source: YamlSource,
) -> Iterator[Problem]:
    """Yield a problem for each entry of the file that selects no worker, or if there are many."""
    if len(workload.churn_entries) > MAX_RULES:
        yield source.locate_problem(
            ("churn",),
            f"{len(workload.churn_entries)} entries; at most {MAX_RULES} are allowed",
            "use wider patterns",
            value="churn",
        )
        return
    used_entries = {turn.entry for turn in planned}
    names = list(dict.fromkeys(host.name for host in ranks))
    for i, entry in enumerate(workload.churn_entries):
        key: KeyPath = ("churn", i, entry.key)
        yield from check_pattern(source, key, entry.pattern, hosts)
        if i not in used_entries and select_hosts(entry.pattern, hosts):
            advice = f"name hosts that placement.workers matches, such as {names[-1]}"
            fix = write_value(key, names[-1], advice)
            yield source.locate_problem(key, "no worker is on any of these hosts", fix)


def _correct_price(
    prices: Mapping[str, float], key: KeyPath, name: str, layers: Sequence[str]
) -> Correction:
    near = find_near_name(name, {each for each in (*layers, "gigabyte") if each not in prices})
    if near is not None:
        return rename_key(key, near, prices[name], f"did you mean `{near}`?")
    return remove_key(key, f"remove it; the layers are {', '.join(layers[:5])}")


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
    for key, pattern in list_placement_patterns(workload.placement, source):
        yield from warn_ambiguous_groups(source, key, pattern, hosts)
    if len(ranks) == 1:
        yield source.locate_problem(
            ("placement",),
            "a single worker never waits for another",
            "place two or more workers",
            value="",
        )
    if workload.rehearsal is not None:
        yield from find_rehearsal_warnings(
            workload.rehearsal, workload.batch_size, len(ranks), source
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
    if isinstance(workload.dataset, Mnist5k):
        return MNIST_5K_TRAIN
    return DIGITS_TRAIN if isinstance(workload.dataset, Digits) else workload.dataset.train


def validate(
    workload: Workload,
    ranks: Sequence[Host],
    hosts: Sequence[Host],
    source: YamlSource,
    most_workers: int = MAX_WORKERS,
) -> Iterator[Problem]:
    """Yield the problems of `workload.yaml` once its placement is valid.

    Args:
        workload: the content of the file.
        ranks: the host of every worker, in rank order.
        hosts: every host.
        source: the parsed file.
        most_workers: number of workers that the testbed can have.
    """
    yield from _check_requests(workload, ranks, hosts, source, most_workers)
    yield from _check_strategy(workload, ranks, source)
    yield from _check_clients(workload, ranks, source)
    yield from _check_client_patterns(workload.strategy, ranks, source)
    yield from _check_resumption(workload, source)
    yield from _check_held_samples(workload, source)
    yield from _check_stream(workload, ranks, source)
    yield from _check_churn(workload, ranks, hosts, source)
