"""Trainings on a stream: a naive one forgets, and one that rehearses forgets less."""

from __future__ import annotations

import os
import re
import signal
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from laggard.analysis.findings.stream_result import StreamResult, summarize_stream
from laggard.core.errors import InputError
from laggard.core.span_schema import Lane
from laggard.workloads.datasets import digits, open_data, prepare_data
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.streams.task_accuracies import read_tasks
from laggard.workloads.tracing.heartbeat import read_heartbeats
from laggard.workloads.workload import Workload
from tests.one_short import one_short

if TYPE_CHECKING:
    from tests.workloads.conftest import Train, Training

COMMON = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 16,
    "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "stream": {"tasks": 5, "passes": 4},
}


def count_steps() -> int:
    """Number of steps of the whole stream."""
    sizes = np.bincount(digits.load().train_labels).reshape(5, 2).sum(axis=1)
    return int((4 * -(-sizes // 16)).sum())


def read_result(training: Training) -> StreamResult:
    """Accuracies after every task."""
    steps = [int(line["step"]) for line in read_lines(training.output_dir.evaluations)]
    result = summarize_stream(read_tasks(training.output_dir, steps))
    assert result is not None
    return result


@pytest.mark.parametrize("strategy", one_short(["allreduce", "local_sgd", "parameter_server"]))
def test_rehearsal_keeps_what_a_naive_training_forgets(train: Train, strategy: str) -> None:
    found, stop = {}, {"stop": {"steps": count_steps()}}
    for name, more in (("naive", {}), ("rehearsal", {"rehearsal": {"size": 100, "sample": 8}})):
        training = train(COMMON | stop | {"strategy": strategy} | more, 2)
        result = read_result(training)
        assert result.measures is not None
        found[name] = result.measures
        # Each task is learnt when it is there.
        assert result.matrix.diagonal().min() > 0.8
    assert found["naive"].forgetting > 0.8
    assert found["rehearsal"].forgetting < 0.4
    assert found["rehearsal"].accuracy > 2 * found["naive"].accuracy


@pytest.mark.parametrize(
    "strategy",
    one_short(
        [
            "ring_allreduce",
            "hierarchical",
            "diloco",
            "topk",
            "parameter_server",
            {"name": "parameter_server", "balanced_batches": True},
        ]
    ),
)
def test_all_strategies_in_lockstep_evaluate_every_task(train: Train, strategy: object) -> None:
    training = train(COMMON | {"stop": {"steps": count_steps()}, "strategy": strategy}, 2)
    result = read_result(training)
    assert result.matrix.shape == (5, 5)
    # What is learnt depends on the strategy, but no class is known before it arrives.
    assert np.triu(result.matrix, k=1).max() < 0.1
    assert result.matrix[0, 0] > 0.8


@pytest.mark.parametrize(
    "strategy", one_short(["allreduce", {"name": "local_sgd", "steps": 7}, "parameter_server"])
)
def test_a_training_ends_with_its_stream(train: Train, strategy: object) -> None:
    training = train(COMMON | {"stop": {"time": "10min"}, "strategy": strategy}, 2)
    assert training.done()["steps"] == count_steps()
    assert read_result(training).measures is not None


def test_more_steps_than_the_stream_has_are_refused(tmp_path: Path) -> None:
    workload = Workload.model_validate(COMMON | {"stop": {"steps": count_steps() + 1}})
    prepare_data(workload, tmp_path)
    data = open_data(workload, tmp_path)
    with pytest.raises(InputError, match=f"set workload.stop.steps to {count_steps()}"):
        plan_partition(workload, data, 2)


@pytest.mark.parametrize("strategy", one_short(["local_sgd", "allreduce"]))
def test_samples_are_exchanged_beside_the_training(train: Train, strategy: str) -> None:
    # Each digit is born at one of two workers, so only an exchange brings it to the other one.
    stream = {"tasks": 5, "passes": 4, "births": {"concentration": 0.001}}
    found = {}
    for exchange in ("local", "global"):
        rehearsal = {"size": 50, "sample": 8, "exchange": exchange}
        changed = {"stop": {"time": "10min"}, "strategy": strategy, "rehearsal": rehearsal}
        found[exchange] = train(COMMON | {"stream": stream} | changed, 2)
        assert found[exchange].done()["steps"] > 300
    sends = found["global"].table("spans")
    sends = sends[(sends.lane == Lane.BACKGROUND) & (sends.phase == "comm")]
    # An image has 64 bytes, and both ranks send. About half of what is drawn is at the other one.
    count = sends.bytes.sum() / 64
    assert count % 1 == 0
    assert 0.3 < count / (2 * 8 * found["global"].done()["steps"]) < 0.7
    assert {*sends["rank"]} == {0, 1}
    local = found["local"].table("spans")
    assert not (local.lane == Lane.BACKGROUND).any()
    assert (local.phase == "rehearse").any()


STREAM_OF_TIERS = COMMON | {"stop": {"time": "10min"}, "rehearsal": {"size": 50, "sample": 8}}
TIERS = ("fog", "fog", "edge", "edge")


def find_exchanges(training: Training) -> list[int]:
    """Steps in which the first ranks of the tiers exchanged models."""
    spans = training.table("spans")
    across = spans[(spans.phase == "comm") & (spans.group == 4)]
    assert {*across["rank"]} == {0, 2}
    return sorted({*map(int, across.step)})


def list_task_ends(training: Training) -> list[int]:
    return [int(line["last_step"] or 0) for line in read_lines(training.output_dir.stream)]


@pytest.mark.long
def test_tiers_average_at_the_ends_of_tasks_only(train: Train) -> None:
    strategy = {"name": "hierarchical", "defer": "task_ends"}
    training = train(STREAM_OF_TIERS | {"strategy": strategy}, 4, tiers=[*TIERS])
    assert find_exchanges(training) == list_task_ends(training)
    result = read_result(training)
    assert result.measures is not None
    assert result.measures.forgetting < 0.5


@pytest.mark.long
def test_tiers_average_when_their_measurements_say_so(train: Train) -> None:
    """Each decision names the step that follows, and all ranks kept to it, or one would wait."""
    strategy = {"name": "hierarchical", "defer": {"name": "measured", "overhead": 0.5}}
    training = train(STREAM_OF_TIERS | {"strategy": strategy}, 4, tiers=[*TIERS])
    exchanges, ends = find_exchanges(training), list_task_ends(training)
    assert {*ends} < {*exchanges}
    assert exchanges[0] == 0
    decisions = read_lines(training.output_dir.decisions)
    assert [line["step"] for line in decisions] == exchanges
    for line, after in zip(decisions, exchanges[1:], strict=False):
        interval = int(re.findall(r"after (\d+) steps", str(line["description"]))[0])
        end = min(each for each in ends if each > int(line["step"]))
        assert after == min(int(line["step"]) + interval, end)
    result = read_result(training)
    assert result.measures is not None
    assert result.measures.forgetting < 0.5


@pytest.mark.long
def test_tiers_average_after_so_many_bytes(train: Train) -> None:
    """A step has 16 new images and up to 32 old ones, of 64 numbers with 4 bytes."""
    every_mb = 10 * (16 + 32) * 64 * 4 / 1e6
    strategy = {"name": "hierarchical", "defer": {"name": "bytes", "every_mb": every_mb}}
    more = {"strategy": strategy, "evaluate_every": 400}
    training = train(STREAM_OF_TIERS | more, 4, tiers=[*TIERS])
    exchanges, ends = find_exchanges(training), list_task_ends(training)
    for before, after in pairwise([end for end in ends if end > ends[0]]):
        within = [step for step in exchanges if before <= step <= after]
        # It is 11 if the last step of a pass is among them, which has fewer samples.
        assert {b - a for a, b in pairwise(within[:-1])} <= {10, 11}
        assert len(within) > 2
    # Between averages, each tier has learnt from samples that the others have not seen.
    steps = [int(line["step"]) for line in read_lines(training.output_dir.evaluations)]
    tasks = read_tasks(training.output_dir, steps)
    own = np.array([task.tiers["edge"] for task in tasks])
    mean = np.array([task.accuracies for task in tasks])
    common = np.isin(steps, exchanges)
    assert (own == mean)[:, common].all()
    assert (own != mean)[:, ~common].any()
    result = summarize_stream(tasks)
    assert result is not None
    assert {*result.tiers} == {"fog", "edge"}


@pytest.mark.long
def test_tiers_average_more_often_the_farther_they_drift(train: Train) -> None:
    exchanges = {}
    for tolerance in (0.0, 100.0):
        strategy = {"name": "hierarchical", "defer": {"name": "drift", "tolerance": tolerance}}
        training = train(STREAM_OF_TIERS | {"strategy": strategy}, 4, tiers=[*TIERS])
        exchanges[tolerance] = find_exchanges(training)
        decisions = read_lines(training.output_dir.decisions)
        assert [line["step"] for line in decisions] == exchanges[tolerance]
        assert re.search(r"moved by [\d.]+ % of its norm", str(decisions[-1]["description"]))
    # Every model moves in every step, and none a hundred times as far as it is from zero.
    assert exchanges[0.0] == [*range(count_steps())]
    assert len(exchanges[100.0]) < count_steps() / 10


@pytest.mark.long
def test_the_others_learn_on_when_a_worker_is_killed(train: Train) -> None:
    """One of three is killed in the third of five tasks, each of which has five times the steps."""
    passes = COMMON | {"stream": {"tasks": 5, "passes": 20}, "stop": {"time": "10min"}}
    more = {"strategy": "parameter_server", "rehearsal": {"size": 50, "sample": 8}}
    training = train(passes | more, 3, wait=False)
    training.begin()
    third_task, beats = 2 * count_steps(), training.output_dir.heartbeat
    training.wait_for(lambda: read_heartbeats(beats, 3)[2].step > third_task)
    os.kill(training.pids[2], signal.SIGKILL)
    statuses = training.forkery.wait([*training.pids, *training.aside])
    assert statuses == [0, 0, -signal.SIGKILL, 0, 0, 0], training.logs()
    assert training.done()["stopped_by"] == "steps"
    result = read_result(training)
    assert result.measures is not None
    assert result.matrix.diagonal().min() > 0.8
    assert result.measures.forgetting < 0.5


def test_a_worker_waits_until_its_samples_have_arrived(train: Train) -> None:
    """Six samples of the worker at the edge come every half second, and it needs six in a step."""
    stream = {"tasks": 5, "arrivals": {"edge": {"burst": 6, "every": "0.5s"}}}
    changed = {"stream": stream, "batch_size": 12, "stop": {"steps": 8}}
    training = train(COMMON | changed, 2, tiers=["fog", "edge"])
    steps = training.table("steps")
    ends_s = (steps[steps["rank"] == 1].end_ns / 1e9).tolist()
    assert all(end_s >= 0.5 * number for number, end_s in enumerate(ends_s))
    spans = training.table("spans")
    waits = spans[(spans.phase == "fetch") & (spans.work == 0)]
    assert {*waits["rank"]} == {1}
