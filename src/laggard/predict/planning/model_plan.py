"""The plan of a scenario's model on its hosts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from laggard.core.cost_model.links import NetworkHop
from laggard.core.cost_model.message_handling import DEFAULT_HANDLING, MessageHandling
from laggard.core.errors import InputError
from laggard.core.hosts import Host
from laggard.predict.machine_speed import measure_handling
from laggard.predict.planned_training import PlannedHops, divide_shares
from laggard.predict.planning.exact_search import ExactPlan, find_exact_plan
from laggard.predict.recommendation.memory_need import BASE_BYTES
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.planning.baselines import list_baselines
from laggard.workloads.planning.evaluate_plan import (
    EvaluatedPlan,
    compute_step_s,
    evaluate_plan,
)
from laggard.workloads.planning.local_search import SearchOptions, search_plan
from laggard.workloads.planning.placement_choices import list_placements
from laggard.workloads.planning.planning_problem import (
    AffineSeconds,
    PlanDevice,
    PlanningProblem,
)

if TYPE_CHECKING:
    from laggard.workloads.datasets.dataset import Split
    from laggard.workloads.strategies.pipeline.profile_blocks import ModelProfile

_WORK_BYTES = 64 << 20
"""Memory of a worker for what passes compute with, and for what the allocator keeps."""
_LOADS = 5
_MOST_SAMPLES = 256
"""Samples that are measured at most: a pass with more takes proportionally longer."""


@dataclass(frozen=True)
class PlannedModel:
    """Plan of a scenario's model, and the plans that it is compared with.

    Attributes:
        scenario: the scenario.
        problem: blocks, devices and links.
        found: the plan, with a step of it.
        baselines_s: seconds of a step of each known plan, by its name; infinite for one that is
            impossible.
        exact: proof of how good the plan is; None if none was wanted.
        note: sentence about how the model was divided; None if there is nothing to say.
    """

    scenario: Scenario
    problem: PlanningProblem
    found: EvaluatedPlan
    baselines_s: Mapping[str, float]
    exact: ExactPlan | None
    note: str | None


@dataclass(frozen=True)
class PlanModelOptions:
    """Options of a plan.

    Attributes:
        evaluations: largest number of plans that are simulated.
        prove_s: seconds of a search for a proof; 0 for none.
        seed: seed of the search.
    """

    evaluations: int = 4000
    prove_s: float = 0.0
    seed: int = 1


def plan_model(
    folder: Path, overrides: Sequence[str] = (), options: PlanModelOptions | None = None
) -> PlannedModel:
    """Plan the model of a scenario on its hosts.

    The blocks of the model are measured on a core of this machine.

    Args:
        folder: folder of the scenario.
        overrides: overrides of the command line.
        options: options of the search.

    Raises:
        InputError: the scenario trains nothing, or no plan is possible.
        ScenarioError: the scenario is wrong.
    """
    options = options or PlanModelOptions()
    scenario = load_scenario(folder, overrides)
    if not scenario.trains:
        raise InputError(
            f"{folder}: {scenario.untrained_reason} — give a scenario whose workload.yaml has a"
            " model and a dataset, or use laggard plan"
        )
    profile, handling, note = profile_scenario_model(scenario)
    problem = build_problem(scenario, profile, handling)
    found = search_plan(problem, SearchOptions(options.evaluations, seed=options.seed))
    exact = None
    if options.prove_s:
        exact = find_exact_plan(problem, list_placements(problem), found, options.prove_s)
    best = evaluate_plan(problem, found.plan, options.seed)
    if exact is not None and exact.step_s < best.step_s:
        best = exact.evaluated
    return PlannedModel(
        scenario,
        problem,
        best,
        {name: compute_step_s(problem, each) for name, each in list_baselines(problem).items()},
        exact,
        note,
    )


def build_problem(
    scenario: Scenario, profile: ModelProfile, handling: MessageHandling = DEFAULT_HANDLING
) -> PlanningProblem:
    """Return what is planned: a profile's blocks on the hosts of a scenario with workers."""
    hosts: tuple[Host, ...] = tuple(dict.fromkeys(scenario.ranks))
    shares, hops = divide_shares(scenario), PlannedHops(scenario.links)
    return PlanningProblem(
        profile.blocks,
        profile.edges,
        tuple(
            PlanDevice(
                host.name,
                tuple(each.scaled(1 / shares[host.name]) for each in profile.forward),
                tuple(each.scaled(1 / shares[host.name]) for each in profile.backward),
                _find_memory(scenario, host),
                shares[host.name],
            )
            for host in hosts
        ),
        {
            (src, dst): _limit_rate(hops[hosts[src].name, hosts[dst].name])
            for src, dst in itertools.permutations(range(len(hosts)), 2)
        },
        scenario.workload.batch_size,
        optimizer_copies=_count_copies(scenario),
        handling=handling,
    )


def _find_memory(scenario: Scenario, host: Host) -> float | None:
    """Return the memory that a limited host has for a model, beside that of the worker itself."""
    limit = scenario.memory.get(host.name)
    return None if limit is None else float(limit - BASE_BYTES - _WORK_BYTES)


def _limit_rate(hop: NetworkHop) -> NetworkHop:
    """Return a link whose rate is finite."""
    return NetworkHop(hop.ends, min(hop.rate_mbps, 1e6), hop.rtt_ms)


def _count_copies(scenario: Scenario) -> int:
    """Return the copies of the parameters that the optimizer has."""
    optimizer = scenario.workload.optimizer
    if optimizer.name == "sgd":
        return 1 if optimizer.model_dump().get("momentum") else 0
    return 2


def profile_scenario_model(scenario: Scenario) -> tuple[ModelProfile, MessageHandling, str | None]:
    """Divide the scenario's model into blocks, and measure them on a core of this machine.

    Returns:
        The blocks, the processor time of messages, and a note about the division.
    """
    import tempfile
    from functools import partial

    import numpy as np
    import torch

    from laggard.workloads.datasets import open_data, prepare_data
    from laggard.workloads.models import build_model
    from laggard.workloads.models.one_thread import compute_on_one_thread
    from laggard.workloads.models.optimizers import build_optimizer
    from laggard.workloads.planning.split_model import split_model
    from laggard.workloads.strategies.pipeline.profile_blocks import profile_blocks

    workload = scenario.workload
    with (
        compute_on_one_thread(),
        tempfile.TemporaryDirectory(prefix="laggard-predict-") as name,
        torch.random.fork_rng(devices=[]),
    ):
        prepare_data(workload, Path(name))
        data = open_data(workload, Path(name))
        model = build_model(
            workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary
        )
        count = max(8, min(workload.batch_size, _MOST_SAMPLES))
        indices = np.arange(count, dtype=np.int64) % len(data.train)
        inputs = data.train.prepare(data.train.fetch(indices)).inputs
        divided = split_model(model, inputs)
        optimizer = partial(build_optimizer, workload.optimizer)
        trace = Path(name) / "trace"
        trace.mkdir()
        profile = profile_blocks(divided, inputs, optimizer, trace)
        loading = _time_loading(data.train, count)
        forward = (profile.forward[0].plus(loading), *profile.forward[1:])
        profile = replace(profile, forward=forward)
        return profile, measure_handling(workload, model), divided.note


def _time_loading(train: Split, count: int) -> AffineSeconds:
    """Return the shortest seconds in which samples are fetched and prepared on a core."""
    import time

    import numpy as np

    shortest_s = math.inf
    for repeat in range(_LOADS):
        indices = (np.arange(count, dtype=np.int64) + repeat * count) % len(train)
        begun_s = time.thread_time()
        train.prepare(train.fetch(indices))
        shortest_s = min(shortest_s, time.thread_time() - begun_s)
    return AffineSeconds(0.0, shortest_s / count)
