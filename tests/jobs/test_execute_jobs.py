"""Jobs that are executed in rounds: hosts, failures, and real runs that go on from checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from laggard.cli.main import main
from laggard.core.errors import DeploymentError, InputError
from laggard.jobs.cluster_file import load_cluster
from laggard.jobs.execute_jobs import RoundExecutor, assign_hosts
from laggard.workloads.scheduling.cluster_jobs import ClusterJob, DeviceType
from laggard.workloads.scheduling.cluster_run import (
    RoundOptions,
    RoundTurn,
    TurnResult,
    run_cluster,
)
from laggard.workloads.scheduling.registry import POLICIES
from tests.processes import find_below
from tests.scenario.scenario_folders import write

LAYERS = """\
environment: {job_name: jobs, walltime: "00:10:00", g5k: {job_type: [], cluster: paradoxe}}
layers:
  - {name: fog, services: [{name: trainer, quantity: 1}]}
  - {name: edge, services: [{name: trainer, quantity: 2}]}
"""
WORKLOAD = """\
model: mlp
dataset: digits
batch_size: 32
stop: {steps: 10}
evaluate_every: 1000000
"""
CLUSTER = """\
layers: continuum
round: 2s
reallocate: 2s
policy: las
jobs:
  - {name: one, workload: train.yaml, steps: 200, throughput: {fog: 60, edge: 60}}
  - {name: two, workload: train.yaml, steps: 150, scale: 2, throughput: {edge: 40}}
"""


def turn(job: int, kind: int, devices: int) -> RoundTurn:
    return RoundTurn(job, kind, devices, steps_left=100.0, round_s=5.0)


def test_who_keeps_its_devices_keeps_its_hosts() -> None:
    layers = [("a", "b", "c"), ("d",)]
    before = {0: ("b",), 1: ("a", "c"), 2: ("d",)}
    found = assign_hosts([turn(0, 0, 1), turn(1, 0, 1), turn(2, 0, 1)], before, layers)
    assert found == {0: ("b",), 1: ("a",), 2: ("c",)}


@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=5),
    seed=st.integers(0, 1000),
)
def test_no_host_has_two_jobs(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    layers = [tuple(f"{kind}{i}" for i in range(sum(sizes))) for kind in "ab"]
    before: dict[int, tuple[str, ...]] = {}
    for _ in range(4):
        turns = [
            turn(job, int(rng.integers(2)), size)
            for job, size in enumerate(sizes)
            if rng.random() < 0.7
        ]
        before = assign_hosts(turns, before, layers)
        used = [host for hosts in before.values() for host in hosts]
        assert len(used) == len({*used})
        assert all(len(before[each.job]) == each.devices for each in turns)
        assert all({*before[each.job]} <= {*layers[each.kind]} for each in turns)


@pytest.mark.parametrize("name", POLICIES)
def test_work_as_fast_as_said_gives_the_simulated_schedule(name: str) -> None:
    types = [DeviceType("t", 2, 1.0), DeviceType("u", 1, 2.0)]
    jobs = [
        ClusterJob("a", 100, {"t": 2.0, "u": 5.0}),
        ClusterJob("b", 80, {"t": 1.0, "u": 4.0}),
        ClusterJob("c", 60, {"t": 3.0}, scale=2, arrival_s=7.0),
    ]

    def work(turns: list[RoundTurn]) -> list[TurnResult]:
        done = []
        for each in turns:
            speed = jobs[each.job].throughput[types[each.kind].name]
            steps = min(each.steps_left, speed * each.round_s)
            done.append(TurnResult(steps, steps / speed))
        return done

    options = RoundOptions(10.0, 10.0)
    simulated = run_cluster(jobs, types, POLICIES[name], options)
    executed = run_cluster(jobs, types, POLICIES[name], options, work=work)
    assert executed.finish_s == pytest.approx(simulated.finish_s)
    assert executed.received_s == pytest.approx(simulated.received_s)


def make_cluster(folder: Path, cluster: str = CLUSTER, workload: str = WORKLOAD) -> Path:
    write(
        folder / "continuum",
        {
            "layers_services": LAYERS,
            "network": "networks: [{src: all, dst: all, delay: 1ms, rate: 200mbit}]\n",
            "heterogeneity": 'deterministic: [{hosts: "all", cpu: 20%}]\n',
            "workflow": "[]\n",
        },
    )
    (folder / "train.yaml").write_text(workload)
    path = folder / "cluster.yaml"
    path.write_text(cluster)
    return path


@pytest.mark.parametrize(
    ("cluster", "workload", "message"),
    [
        (
            CLUSTER.replace("two, workload: train.yaml,", "two,"),
            WORKLOAD,
            "two: has no `workload` to run",
        ),
        ("types: {t: {count: 1}}\njobs: [{name: a, steps: 1, throughput: {t: 1}}]", "", "`layers`"),
    ],
)
def test_what_cannot_be_executed_is_refused(
    tmp_path: Path, cluster: str, workload: str, message: str
) -> None:
    found = load_cluster(make_cluster(tmp_path, cluster, workload))
    with pytest.raises(InputError, match=message):
        RoundExecutor(found, tmp_path / "s", tmp_path / "runs", print).prepare()


@pytest.mark.parametrize("strategy", ["local_sgd", "topk"])
def test_a_job_without_a_whole_checkpoint_goes_on_from_its_weights(
    tmp_path: Path, strategy: str
) -> None:
    found = load_cluster(make_cluster(tmp_path, CLUSTER, WORKLOAD + f"strategy: {strategy}\n"))
    executor = RoundExecutor(found, tmp_path / "s", tmp_path / "runs", print)
    executor.prepare()
    assert [each.split(" begins")[0] for each in executor.notes] == [
        "each turn of one",
        "each turn of two",
    ]
    (words,) = [[*executor._list_overrides(turn(0, 0, 1), ["fog.trainer.1.1"])]]
    assert "workload.stop={steps: 100, time: 5s}" in words
    assert "workload.save_weights=true" in words
    assert not [each for each in words if "checkpoint" in each or "initial" in each]


def test_a_job_that_always_fails_ends_the_schedule(tmp_path: Path) -> None:
    found = load_cluster(make_cluster(tmp_path))
    told: list[str] = []
    executor = RoundExecutor(found, tmp_path / "s", tmp_path / "runs", told.append)
    executor.prepare()
    (tmp_path / "s" / "one" / "workload.yaml").write_text("model: no\ndataset: digits\n")
    for _ in range(2):
        assert executor.execute([turn(0, 0, 1)]) == [TurnResult(0.0, 5.0)]
    with pytest.raises(DeploymentError, match="one: failed 3 times"):
        executor.execute([turn(0, 0, 1)])
    assert len(told) == 3
    assert [each.steps for each in executor.turns] == [0, 0, 0]
    # What was done so far is on the disk, also if the schedule does not end.
    recorded = json.loads((tmp_path / "s" / "turns.json").read_text())
    assert [(each["job"], each["steps"]) for each in recorded] == [("one", 0)] * 3
    assert all(each["problem"] for each in recorded)


def kill_a_worker(parent: psutil.Process, killed: threading.Event) -> None:
    """Kill one rank of a run below a process, as soon as there is one that trains."""
    while not killed.is_set():
        training = find_below(
            parent, lambda each: each.name() == "rank-0" and each.cpu_times().user > 0.05
        )
        if training:
            training[0].kill()
            killed.set()
        time.sleep(0.05)


@pytest.mark.long
def test_real_jobs_take_turns_and_one_that_is_killed_loses_no_step(tmp_path: Path) -> None:
    # One goes on from checkpoints, and the other one from weights.
    cluster = CLUSTER.replace("two, workload: train.yaml", "two, workload: local.yaml")
    path = make_cluster(tmp_path, cluster)
    (tmp_path / "local.yaml").write_text(WORKLOAD + "strategy: local_sgd\n")
    words = ["schedule", str(path), "--on", "local", "--json", "--runs", str(tmp_path / "runs")]
    started = subprocess.Popen(
        [sys.executable, "-m", "laggard", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    killed = threading.Event()
    killer = threading.Thread(
        target=kill_a_worker, args=(psutil.Process(started.pid), killed), daemon=True
    )
    killer.start()
    output, errors = started.communicate()
    killed.set()
    killer.join()
    assert started.returncode == 0, errors
    document = json.loads(output)
    turns = document["turns"]
    # A busy machine may be unable to emulate a turn, which is repeated too.
    failed = [each for each in turns if "killed by signal 9" in each["problem"]]
    assert len(failed) == 1, errors
    others = {each["problem"] for each in turns if each not in failed} - {""}
    assert all("fidelity checks failed" in each for each in others), others
    assert "failed on" in errors
    steps = {
        name: sum(each["steps"] for each in turns if each["job"] == name) for name in ("one", "two")
    }
    assert steps == {"one": 200, "two": 150}
    assert document["notes"][-1].startswith("each turn of two begins with the weights of")
    assert [len(each["hosts"]) for each in turns if each["job"] == "two"].count(2) >= 1
    (folder,) = (tmp_path / "runs" / "schedules").iterdir()
    assert json.loads((folder / "schedule.json").read_text()) == document
    assert "<svg" in (folder / "schedule.svg").read_text()
    assert "failed" in (folder / "schedule.html").read_text()
    assert Path(failed[0]["run"]).exists()


MEASURED = """\
layers: continuum
round: 4s
reallocate: 4s
policy: las
jobs:
  - {name: one, workload: train.yaml, steps: 60, throughput: {fog: {1: 0.5, 2: 0.75}, edge: 0}}
"""


@pytest.mark.long
def test_a_job_is_measured_before_it_is_scheduled(tmp_path: Path) -> None:
    path = make_cluster(tmp_path, MEASURED)
    words = ["schedule", str(path), "--on", "local", "--measure", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "laggard", *words, "--runs", str(tmp_path / "runs")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    # It was said to take two minutes, and to be unable to run at the edge.
    (speeds,) = document["throughput"].values()
    assert speeds.keys() == {"fog"}
    assert speeds["fog"] > 5
    assert f"one: {speeds['fog']:.4g} steps/s on fog.trainer.1.1" in done.stderr
    simulated, executed = (each["makespan_s"] for each in document["schedules"])
    assert simulated == pytest.approx(60 / speeds["fog"], rel=0.2)
    assert executed < 60 / 5
    page = next((tmp_path / "runs" / "schedules").glob("*/schedule.html")).read_text()
    assert "the executed makespan is" in page
    assert page.count(">report</a>") == len(document["turns"])


def test_measuring_without_a_testbed_is_refused(tmp_path: Path) -> None:
    found = CliRunner().invoke(main, ["schedule", str(make_cluster(tmp_path)), "--measure"])
    assert found.exit_code == 2
    assert "--measure: valid only with --on" in found.output
