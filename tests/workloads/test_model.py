"""`workload.yaml`: what is understood and what is refused."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError, ScenarioError
from laggard.core.hosts import Host
from laggard.core.yaml_source import parse_yaml
from laggard.workloads.plan import (
    WorkerPlan,
    join_exchange,
    place,
    place_server,
    plan_addresses,
    plan_evaluator,
    plan_link_sampler,
    plan_workers,
    sampled_hosts,
)
from laggard.workloads.specification.callables import load_callable
from laggard.workloads.strategies.registry import STRATEGY_NAMES
from laggard.workloads.transport.keys import make_endpoints
from laggard.workloads.workload import Workload

DESIGN = """
model: resnet8
dataset: digits
batch_size: 128
optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
strategy: allreduce
placement: {workers: ["cloud.*", "fog.*", "edge.*"], per_host: 1, server: "cloud.*"}
objective: {name: makespan, prices: {cloud: 1.20, fog: 0.40, edge: 0.05, gigabyte: 0.09}}
stop: {accuracy: 0.95, steps: 2000, time: 10min}
seed: 1
"""


def test_the_example_of_the_design() -> None:
    workload = validate_model(parse_yaml(DESIGN, "workload.yaml"), Workload)
    assert workload.stop.time_s == 600
    assert workload.placement.workers == ("cloud.*", "fog.*", "edge.*")
    assert workload.objective.prices["gigabyte"] == 0.09
    assert workload.strategy.name == "allreduce"


def test_a_model_and_a_dataset_are_enough() -> None:
    workload = Workload.model_validate({"model": "mlp", "dataset": "digits"})
    assert workload.batch_size == 128
    assert workload.stop.steps is not None
    assert workload.evaluate_every is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model": "zzz"}, "mlp, cnn, resnet8, resnet18, vgg11, transformer"),
        ({"model": "os.system"}, "no such model"),
        ({"model": 3}, "string"),
        ({"dataset": "faces"}, "digits, mnist_5k, synthetic, cifar10, image_folder"),
        ({"dataset": "mnist"}, "did you mean `mnist_5k`"),
        ({"dataset": "cifar10"}, "Field required"),
        ({"dataset": {"name": "digits", "folder": "x"}}, "Extra inputs"),
        ({"dataset": {"name": "synthetic", "classes": 1}}, "greater than or equal to 2"),
        ({"batch_size": 0}, "greater than or equal to 1"),
        ({"batch_size": "many"}, "integer"),
        ({"strategy": "magic"}, "no such strategy — use allreduce, "),
        ({"strategy": "local_sdg"}, "no such strategy — did you mean `local_sgd`?"),
        ({"strategy": {"name": "alreduce"}}, "no such strategy — did you mean `allreduce`?"),
        ({"strategy": ["allreduce"]}, "valid dictionary"),
        ({"strategy": {"name": "local_sgd", "steps": 0}}, "greater than or equal to 1"),
        ({"strategy": {"name": "hierarchical", "tier_steps": 9}}, "write `wan_steps: 9` or more"),
        ({"strategy": {"name": "diloco", "outer_momentum": 1}}, "less than 1"),
        ({"strategy": {"compress": "zip"}}, "no such compression — use topk, powersgd, fp16"),
        ({"strategy": {"compress": {"name": "topk", "fraction": 0}}}, "greater than 0"),
        (
            {"strategy": {"compress": {"name": "powersgd", "after": 1}}},
            "greater than or equal to 2",
        ),
        (
            {"strategy": {"name": "diloco", "compress": "powersgd"}},
            "powersgd needs the matrices of the layers — use topk or fp16",
        ),
        ({"strategy": {"name": "hop", "staleness": 8}}, "set max_iteration_gap to 9 or more"),
        (
            {"strategy": {"name": "hop", "staleness": 0, "skip": 2}},
            "raise staleness, or backups and max_iteration_gap",
        ),
        ({"strategy": {"name": "hop", "backups": 2}}, "set backups to 1 or less"),
        ({"strategy": {"name": "fast_links", "mixing": 0}}, "greater than 0"),
        ({"strategy": {"name": "fast_links", "explore": 1.5}}, "less than or equal to 1"),
        ({"optimizer": {"name": "adam", "momentum": 0.9}}, "adam has no momentum"),
        ({"optimizer": {"lr": -1}}, "greater than 0"),
        ({"optimizer": {"lr": float("nan")}}, "finite number"),
        ({"optimizer": "lion"}, "'sgd', 'adam' or 'adamw'"),
        ({"stop": {}}, "at least one of accuracy, steps and time"),
        ({"stop": {"accuracy": 95}}, "less than or equal to 1"),
        ({"stop": {"time": "0s"}}, "end training at once"),
        ({"stop": {"time": "ten minutes"}}, "a duration must be a number"),
        ({"stop": {"epochs": 3}}, "Extra inputs"),
        ({"placement": {"workers": []}}, "at least 1 item"),
        ({"placement": {"per_host": 0}}, "greater than or equal to 1"),
        ({"seed": -1}, "greater than or equal to 0"),
        ({"evaluate_every": 0}, "greater than or equal to 1"),
        ({"objective": {"prices": {"cloud": -1}}}, "greater than or equal to 0"),
        ({"color": "red"}, "Extra inputs"),
    ],
)
def test_refused(change: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Workload.model_validate({"model": "mlp", "dataset": "digits", **change})
    assert says in str(refused.value)


def test_a_refusal_points_at_the_place() -> None:
    text = "model: mlp\ndataset: {name: cifar11, folder: x}\nstrategy:\n  name: magic\n"
    with pytest.raises(ScenarioError) as refused:
        validate_model(parse_yaml(text, "workload.yaml"), Workload)
    places = {(problem.line, problem.rule) for problem in refused.value.problems}
    assert (2, "no such dataset") in places
    assert (4, "no such strategy") in places


@pytest.mark.parametrize(
    ("strategy", "place", "says"),
    [
        (
            "local_sdg",
            (3, 11),
            'strategy: "local_sdg": no such strategy — did you mean `local_sgd`?',
        ),
        ("{name: locl_sgd}", (3, 18), "did you mean `local_sgd`?"),
        ("{name: local_sgd, stepz: 4}", (3, 29), "stepz: unknown key — did you mean `steps`?"),
        (
            "{name: local_sgd, outer_lr: 4}",
            (3, 29),
            "unknown key — the keys are after, balanced_batches, compress, name, steps",
        ),
        (
            "{steps: 4}",
            (3, 12),
            "unknown key — the keys are balanced_batches, compress, name, trace_buckets",
        ),
        ("{name: local_sgd, steps: often}", (3, 36), "a whole number"),
        ("{name: hierarchical, tier_steps: 9}", (3, 44), "write `wan_steps: 9` or more"),
        ("{balanced_batches: {evry: 4}}", (3, 31), "evry: unknown key — did you mean `every`?"),
        ("balanced_batch", (3, 11), "no such strategy — did you mean `balanced_batches`?"),
        (
            "{name: asynchronous, balanced_batches: true}",
            (3, 50),
            (
                "balanced_batches: true: asynchronous cannot balance batches: each worker takes"
                " an equal share — remove balanced_batches, or use allreduce,"
            ),
        ),
        ("topkk", (3, 11), "did you mean `topk`?"),
        ("{name: fp16}", (3, 18), "fp16 is a compression: write `compress: {name: fp16, ...}`"),
        (
            "{compress: topq}",
            (3, 22),
            'strategy.compress: "topq": no such compression — did you mean `topk`?',
        ),
        (
            "{compress: {name: topq}}",
            (3, 29),
            'strategy.compress.name: "topq": no such compression',
        ),
        (
            "{compress: {name: topk, fractoin: 1}}",
            (3, 35),
            "fractoin: unknown key — did you mean `fraction`?",
        ),
        (
            "{name: local_sgd, compress: powersgd}",
            (3, 39),
            'strategy.compress: "powersgd": local_sgd sends the model as one vector',
        ),
        ("{name: gossip, compress: topk}", (3, 26), "compress: unknown key"),
        (
            "{name: hop, staleness: 3, max_iteration_gap: 3}",
            (3, 56),
            "set max_iteration_gap to 4 or more",
        ),
    ],
)
def test_a_strategy_is_refused_where_it_stands(
    strategy: str, place: tuple[int, int], says: str
) -> None:
    with pytest.raises(ScenarioError) as refused:
        validate_model(
            parse_yaml(f"model: mlp\ndataset: digits\nstrategy: {strategy}\n", "workload.yaml"),
            Workload,
        )
    (problem,) = refused.value.problems
    assert (problem.line, problem.column) == place
    assert says in str(problem)


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("balanced_batches", "allreduce, balanced_batches (every 8, window 32, min_gain 0.02)"),
        (
            {"name": "balanced_batches", "balanced_batches": {"every": 3}},
            "allreduce, balanced_batches (every 3, ",
        ),
        (
            {"balanced_batches": {"min_gain": 0}},
            "allreduce, balanced_batches (every 8, window 32, min_gain 0.0)",
        ),
        ({"name": "local_sgd", "balanced_batches": True}, "local_sgd, balanced_batches (every 8, "),
        ({"balanced_batches": False}, "allreduce"),
        ({"name": "local_sgd", "balanced_batches": None}, "local_sgd, steps 8, after 0"),
    ],
)
def test_batches_are_balanced_where_it_is_said(strategy: object, told: str) -> None:
    asked = workload(strategy=strategy)
    assert asked.strategy.describe().startswith(told)
    assert Workload.model_validate_json(asked.model_dump_json(by_alias=True)) == asked


@pytest.mark.parametrize(
    ("strategy", "fix"),
    [
        ("{balanced_batches: {least_gain: 0.1}, name: allreduce}", "write min_gain"),
        ("{name: adaptive, longest: 64}", "write max_period"),
        ("{name: hop, ahead: 4}", "write max_iteration_gap"),
    ],
)
def test_a_renamed_key_is_refused_with_its_new_name(strategy: str, fix: str) -> None:
    text = f"model: mlp\ndataset: digits\nstop: {{steps: 1}}\nstrategy: {strategy}\n"
    with pytest.raises(ScenarioError) as refused:
        validate_model(parse_yaml(text.encode(), "workload.yaml"), Workload)
    (problem,) = refused.value.problems
    assert problem.line == 4
    assert fix in str(problem)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw"])
def test_an_optimizer_reads_as_it_was_written(name: str) -> None:
    asked = workload(optimizer=name)
    assert Workload.model_validate_json(asked.model_dump_json(by_alias=True)) == asked


@pytest.mark.parametrize(
    ("strategy", "told"),
    [
        ("topk", "allreduce, compress topk (fraction 0.01)"),
        ("powersgd", "allreduce, compress powersgd (rank 2, after 2)"),
        ("fp16", "allreduce, compress fp16"),
        (
            {"compress": {"rank": 4, "name": "powersgd"}},
            "allreduce, compress powersgd (rank 4, after 2)",
        ),
        ({"name": "local_sgd", "compress": "fp16"}, "local_sgd, steps 8, after 0, compress fp16"),
        ({"name": "asynchronous", "compress": None}, "asynchronous"),
    ],
)
def test_a_compression_is_told_with_its_strategy(strategy: object, told: str) -> None:
    asked = workload(strategy=strategy)
    assert asked.strategy.describe() == told
    assert Workload.model_validate_json(asked.model_dump_json(by_alias=True)) == asked


def test_every_strategy_has_a_default_for_everything_and_says_what_it_is() -> None:
    for name in STRATEGY_NAMES:
        workload = Workload.model_validate({"model": "mlp", "dataset": "digits", "strategy": name})
        assert workload.strategy.describe().startswith(name)
        assert Workload.model_validate_json(workload.model_dump_json(by_alias=True)) == workload
        assert inspect.getdoc(type(workload.strategy))


@pytest.mark.parametrize(
    "dataset",
    [
        "digits",
        {"name": "synthetic", "kind": "tokens", "length": 12},
        {"name": "cifar10", "folder": "data"},
        {"name": "image_folder", "folder": "data", "size": 16},
        "package.module:data",
    ],
)
def test_it_survives_json(dataset: object) -> None:
    workload = Workload.model_validate(
        {"model": "a.b:c", "dataset": dataset, "stop": {"time": "3min"}}
    )
    again = Workload.model_validate_json(workload.model_dump_json(by_alias=True))
    assert again == workload


def test_the_schema_allows_a_bare_name_and_a_mapping() -> None:
    schema = Workload.model_json_schema()
    assert [
        option["type"] for option in schema["properties"]["dataset"]["anyOf"] if "type" in option
    ] == ["string"]
    assert "time" in schema["$defs"]["Stop"]["properties"]
    assert schema["required"] == ["model", "dataset"]
    json.dumps(schema)


def test_a_dataset_lies_beside_its_scenario(tmp_path: Path) -> None:
    workload = Workload.model_validate(
        {"model": "cnn", "dataset": {"name": "cifar10", "folder": "data"}}
    )
    located = workload.located(tmp_path).dataset
    assert located.model_dump()["folder"] == str(tmp_path / "data")
    digits = Workload.model_validate({"model": "cnn", "dataset": "digits"})
    assert digits.located(tmp_path) == digits


HOSTS = [
    Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, f"10.77.0.{n}", layer_id=layer_id)
    for n, (layer, layer_id, i) in enumerate(
        [("edge", 1, 1), ("edge", 1, 2), ("fog", 2, 1), ("cloud", 3, 1), ("cloud", 3, 2)], start=1
    )
]


def workload(**settings: object) -> Workload:
    return Workload.model_validate({"model": "mlp", "dataset": "digits", **settings})


@pytest.mark.parametrize(
    ("placement", "expected"),
    [
        (
            {"workers": ["cloud.*", "fog.*", "edge.*"]},
            ["cloud.1", "cloud.2", "fog.1", "edge.1", "edge.2"],
        ),
        ({"workers": ["edge.*", "cloud.*"]}, ["edge.1", "edge.2", "cloud.1", "cloud.2"]),
        ({"workers": ["cloud.trainer.1.2", "cloud.*"]}, ["cloud.2", "cloud.1"]),
        ({"workers": ["edge.*"], "per_host": 2}, ["edge.1", "edge.1", "edge.2", "edge.2"]),
        ({"workers": "fog.*"}, ["fog.1"]),
    ],
)
def test_ranks_follow_the_patterns(placement: dict[str, object], expected: list[str]) -> None:
    placed = place(workload(placement=placement).placement, HOSTS)
    assert [f"{host.layer}.{host.machine_id}" for host in placed] == expected


def test_every_host_trains_by_default() -> None:
    assert len(plan_workers(workload(), HOSTS, Path("/workers"))) == len(HOSTS)


def test_plans(tmp_path: Path) -> None:
    plans = plan_workers(
        workload(placement={"workers": ["cloud.*", "edge.*"]}), HOSTS, tmp_path, 2.0
    )
    assert [plan.rank for plan in plans] == [0, 1, 2, 3]
    assert {plan.world_size for plan in plans} == {4}
    assert plans[0].host == "cloud.trainer.1.1"
    assert plans[0].hosts_by_rank[3] == "edge.trainer.1.2"
    assert plans[0].timeout_s == 600
    assert plans[2] == WorkerPlan.model_validate_json(plans[2].to_json())
    assert plan_evaluator(plans).world_size == 4
    sampler = plan_link_sampler(plans, HOSTS, {"cloud.trainer.1.1": tmp_path / "ns"})
    assert [host.name for host in sampler.hosts] == list(plans[0].hosts_by_rank)
    assert [host.address for host in sampler.hosts] == [
        "10.77.0.4",
        "10.77.0.5",
        "10.77.0.1",
        "10.77.0.2",
    ]
    assert sampler.hosts[0].namespace == str(tmp_path / "ns")
    assert sampler.interval_s == pytest.approx(0.4)


def test_the_server_is_where_the_placement_says_or_with_the_first_rank(tmp_path: Path) -> None:
    placement = {"workers": ["edge.*", "fog.*"], "server": "cloud.*"}
    served = workload(strategy="asynchronous", placement=placement)
    assert place_server(served.placement, HOSTS).name == "cloud.trainer.1.1"
    assert (
        place_server(workload(placement={"workers": ["fog.*", "edge.*"]}).placement, HOSTS).layer
        == "fog"
    )
    addresses = plan_addresses(served, HOSTS, 5000)
    assert addresses == ("10.77.0.1:5000", "10.77.0.2:5001", "10.77.0.3:5002", "10.77.0.4:5003")
    assert sampled_hosts(served, HOSTS) == (
        "edge.trainer.1.1", "edge.trainer.1.2", "fog.trainer.1.1", "cloud.trainer.1.1",
    )  # fmt: skip
    assert "cloud.trainer.1.1" not in sampled_hosts(workload(placement=placement), HOSTS)
    workers, server = join_exchange(
        plan_workers(served, HOSTS, tmp_path), HOSTS, make_endpoints(addresses, 1.0)
    )
    assert server.host == "cloud.trainer.1.1"
    assert [worker.endpoint.node for worker in workers if worker.endpoint is not None] == [0, 1, 2]
    assert server.endpoint.node == server.world_size == 3


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"batch_size": 4}, "each of the 5 workers"),
        ({"placement": {"workers": ["clod.*"]}}, "clod.* matches no host"),
        ({"placement": {"workers": ["edge.*"], "server": "mars.*"}}, "mars.* matches no host"),
    ],
)
def test_plans_that_cannot_be(settings: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says.replace("*", r"\*")):
        plan_workers(workload(**settings), HOSTS, Path("/workers"))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("no_such_package.x:y", "No module"),
        ("json:no_such", "no attribute"),
        ("json:decoder", "which cannot be called"),
    ],
)
def test_callables_that_are_none(name: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load_callable(name)


def test_a_callable() -> None:
    assert load_callable("json:JSONDecoder.decode") is json.JSONDecoder.decode
