"""Whole trainings of several real processes over loopback."""

from __future__ import annotations

import os
import re
import signal
import textwrap
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
import torch

from laggard.core.emulated_drive import Drive, DriveLimits, make_drive
from laggard.core.span_schema import Flag, Lane, span_schema, step_schema
from laggard.workloads.coordination.start_barrier import Reason, StartBarrier
from laggard.workloads.output.worker_output import read_lines
from laggard.workloads.tracing.heartbeat import read_heartbeats, suspects
from laggard.workloads.tracing.row_types import SPAN_ROW
from laggard.workloads.tracing.stream import read_rows

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery, Train, Training

DIGITS = {"model": "mlp", "dataset": "digits", "batch_size": 128}
ENDLESS = {"steps": 10**6}


@pytest.fixture(scope="module")
def accurate(train: Train) -> Training:
    return train({**DIGITS, "model": "resnet8", "stop": {"accuracy": 0.95, "steps": 300}}, 3)


def test_imports_start_no_thread_and_do_not_touch_cuda(forkery: Forkery) -> None:
    """Or forking would not be safe."""
    assert forkery.after_imports == {"threads": 1, "sklearn": False, "cuda": []}


def test_digits_are_learnt(accurate: Training) -> None:
    done = accurate.done()
    assert done["stopped_by"] == "accuracy"
    assert done["accuracy"] >= 0.95
    evaluations = read_lines(accurate.output_dir.evaluations)
    assert [line["evaluation"] for line in evaluations] == list(range(len(evaluations)))
    assert all(float(line["accuracy"] or 0) >= 0.95 for line in evaluations[-3:])
    assert not all(float(line["accuracy"] or 0) >= 0.95 for line in evaluations[-4:-1])


def test_spans_tile_every_rank(accurate: Training) -> None:
    """No gaps, no overlap, in order; a step begins where the one before it, or its evaluation,
    ended."""
    spans = accurate.table("spans")
    main = spans[spans.lane == Lane.MAIN]
    assert (main.dur_ns >= 0).all()
    for _, of_rank in main.groupby("rank"):
        ordered = of_rank.sort_values(["start_ns", "step", "seq"])
        start, duration = ordered.start_ns.to_numpy(), ordered.dur_ns.to_numpy()
        assert start[0] == 0
        assert np.array_equal(start[1:], start[:-1] + duration[:-1])
        assert (np.diff(ordered.step) >= 0).all()


def test_phases_of_a_step(accurate: Training) -> None:
    spans = accurate.table("spans")
    done = accurate.done()
    order = ["fetch", "prep", "comm", "forward", "backward", "comm", "optimizer"]
    for (step, _), of_step in spans.groupby(["step", "rank"]):
        phases = [
            phase
            for phase in of_step.sort_values("seq").phase
            if phase not in ("other", "evaluate")
        ]
        assert phases == order
        assert list(of_step.sort_values("seq").seq) == list(range(len(of_step)))
        warm_up = bool((of_step["flags"] & int(Flag.WARM_UP)).any())
        assert warm_up == (step < 5)
        assert not (of_step["flags"] & int(Flag.TRUNCATED)).any()
    assert spans.step.max() + 1 == done["steps"]


def test_evaluations_are_outside_the_clock(accurate: Training) -> None:
    """Which stands still from the last rank's arrival until the first one goes on."""
    spans, done = accurate.table("spans"), accurate.done()
    paused_ns = 0
    evaluations = spans[spans.phase == "evaluate"]
    assert set(evaluations.group) == set(range(int(done["evaluations"])))
    for _, of_evaluation in evaluations.groupby("group"):
        assert sorted(of_evaluation["rank"]) == [0, 1, 2]
        ends = of_evaluation.start_ns + of_evaluation.dur_ns
        assert ends.min() >= of_evaluation.start_ns.max(), "all wait for all"
        paused_ns += ends.min() - of_evaluation.start_ns.max()
    assert 0 < done["paused_ns"] <= paused_ns
    last_ns = (spans.start_ns + spans.dur_ns).max()
    assert 0 < done["makespan_s"] * 1e9 <= last_ns - done["paused_ns"] + 1


def test_tables_have_the_documented_schemas(accurate: Training) -> None:
    import pyarrow.parquet as pq

    run = accurate.collect()
    assert pq.read_schema(run / "spans.parquet") == span_schema()
    assert pq.read_schema(run / "steps.parquet") == step_schema()
    hosts = accurate.table("hosts")
    assert list(hosts.host) == [host.name for host in accurate.hosts]
    steps = accurate.table("steps")
    per_step = steps.groupby("step").samples.sum()
    assert per_step.sum() == accurate.done()["samples"]
    assert (per_step == steps.groupby("step").batch_size.first()).all()
    evaluated = steps.dropna(subset=["accuracy"])
    assert evaluated.step.nunique() == accurate.done()["evaluations"]
    assert (steps.end_ns > steps.start_ns).all()


def test_connections_are_sampled(accurate: Training) -> None:
    links = accurate.table("links")
    assert len(links) > 0
    assert (links.time_ns >= 0).all()
    assert set(links.src) <= {host.name for host in accurate.hosts}
    assert (
        links.groupby(["src_port", "dst_port"])
        .bytes_acked.apply(lambda acked: acked.diff().min())
        .dropna()
        >= 0
    ).all()


def test_progress_lines(accurate: Training) -> None:
    lines = read_lines(accurate.output_dir.progress)
    steps = [line for line in lines if "loss" in line]
    assert steps
    assert all(set(line) == {"time_ns", "step", "samples", "loss"} for line in steps)
    assert all(set(line) == {"time_ns", "step", "accuracy"} for line in lines if "accuracy" in line)


def losses(training: Training) -> np.ndarray:
    steps: pd.DataFrame = training.table("steps")
    return steps.sort_values(["rank", "step"]).loss.to_numpy()


@pytest.mark.parametrize(
    "model",
    [
        pytest.param("cnn", marks=pytest.mark.long),
        pytest.param("resnet8", marks=pytest.mark.long),
        "transformer",
    ],
)
def test_the_same_seed_gives_the_same_losses_bit_for_bit(train: Train, model: str) -> None:
    """And steps stop training."""
    workload = {**DIGITS, "model": model, "stop": {"steps": 13}, "seed": 4}
    training = train(workload, 2)
    assert training.done()["stopped_by"] == "steps"
    assert training.done()["steps"] == 13
    assert list(training.table("steps").groupby("rank").step.max()) == [12, 12]
    first, second = losses(training), losses(train(workload, 2))
    assert len(first) == 26
    assert np.array_equal(first, second, equal_nan=True)


def test_another_seed_gives_other_losses(train: Train) -> None:
    workload = {**DIGITS, "stop": {"steps": 5}}
    first, second = (losses(train({**workload, "seed": seed}, 1)) for seed in (4, 5))
    assert not np.isclose(first, second).any()


def test_training_ends_with_a_checkpoint_when_its_machines_are_about_to_go(train: Train) -> None:
    """Rank 0 waits until every machine knows of the last step, which here this test says."""
    training = train(
        {**DIGITS, "stop": ENDLESS, "evaluate_every": 10**9}, 2, wait=False, relayed=True
    )
    training.begin()
    training.wait_for(lambda: bool(read_lines(training.output_dir.progress)))
    start_barrier = StartBarrier(training.output_dir.start_barrier, 2)
    start_barrier.request_stop()
    training.wait_for(lambda: start_barrier.last_step() is not None)
    last = start_barrier.last_step()
    assert last is not None
    assert last[1] is Reason.WALLTIME
    start_barrier.confirm_last_step()
    training.finish()
    done = training.done()
    assert done["stopped_by"] == "walltime"
    assert set(training.table("steps").groupby("rank").step.max()) == {done["steps"] - 1}
    state = torch.load(training.output_dir.checkpoint, weights_only=True)
    assert state["step"] == done["steps"] - 1
    assert set(state) == {"step", "elapsed_s", "model", "optimizer"}


@pytest.fixture(scope="module")
def checkpointed(train: Train, tmp_path_factory: pytest.TempPathFactory) -> tuple[Training, Drive]:
    """An MLP whose first rank has a drive, on which a batch takes 6 ms to read and a checkpoint 10
    ms and more to write."""
    path = tmp_path_factory.mktemp("drive") / "drive"
    drive = make_drive(
        path, DriveLimits(1.0, 8.0, read_latency_ms=2.0, write_latency_ms=1.0), sharers=2
    )
    workload = {**DIGITS, "stop": {"steps": 30}, "checkpoint_every": 7, "evaluate_every": 10**9}
    return train(workload, 2, change={"drive": str(path)}), drive


def test_the_drive_is_waited_for_in_fetches(checkpointed: tuple[Training, Drive]) -> None:
    training, drive = checkpointed
    spans = training.table("spans")
    fetches = spans[(spans.phase == "fetch") & (spans.work == 64)]
    assert len(fetches) > 50
    assert fetches.dur_ns.min() >= (2.0 + 64 * 64 / 1e3) * 1e6
    counted = drive.counters()
    assert (counted.read_accesses, counted.read_bytes) == (
        60,
        64 * spans[spans.phase == "fetch"].work.sum(),
    )


def test_checkpoints_are_written_within_the_step_by_the_first_rank(
    checkpointed: tuple[Training, Drive],
) -> None:
    training, drive = checkpointed
    spans = training.table("spans")
    written = spans[spans.phase == "checkpoint"]
    assert list(zip(written.step, written["rank"], strict=True)) == [
        (6, 0),
        (13, 0),
        (20, 0),
        (27, 0),
    ]
    size = training.output_dir.checkpoint.stat().st_size
    assert (drive.counters().write_bytes, drive.counters().write_accesses) == (4 * size, 4)
    assert written.dur_ns.min() >= (1.0 + size / 8e3) * 1e6
    # The last one is written after the last step, outside the training's clock and the drive.
    assert torch.load(training.output_dir.checkpoint, weights_only=True)["step"] == 29
    steps = training.table("steps")
    step = steps[(steps["rank"] == 0) & (steps.step == 13)].iloc[0]
    inside = written.iloc[1]
    assert step.start_ns <= inside.start_ns
    assert inside.start_ns + inside.dur_ns <= step.end_ns


def test_time_stops_training_at_the_same_step_everywhere_and_is_recorded_undilated(
    train: Train,
) -> None:
    training = train({**DIGITS, "stop": {"time": "300ms"}, "evaluate_every": 6400}, 3, dilation=3.0)
    done = training.done()
    assert done["stopped_by"] == "time"
    assert done["makespan_s"] >= 0.3
    assert set(training.table("steps").groupby("rank").step.max()) == {done["steps"] - 1}
    wall_s = (done["end_ns"] - done["zero_ns"] - done["paused_ns"]) / 1e9
    assert wall_s == pytest.approx(3 * done["makespan_s"])
    training.collect(3.0)
    spans = pd.read_parquet(training.folder / "run" / "spans.parquet").sort_values(
        ["rank", "start_ns", "step", "seq"]
    )
    for _, of_rank in spans.groupby("rank"):
        start, duration = of_rank.start_ns.to_numpy(), of_rank.dur_ns.to_numpy()
        assert np.array_equal(start[1:], start[:-1] + duration[:-1])


def test_a_dead_peer_is_an_error_and_the_trace_survives(train: Train) -> None:
    # Ranks that wait for an evaluation have no connection open to notice with; whoever runs them
    # sees the death then.
    training = train({**DIGITS, "stop": ENDLESS, "evaluate_every": 10**9}, 3, wait=False)
    training.begin()
    # Traces are written once a second, and are to be there of every rank.
    training.wait_for(
        lambda: all(len(read_rows(training.output_dir.spans(rank), SPAN_ROW)) for rank in range(3))
    )
    os.kill(training.pids[1], signal.SIGKILL)
    statuses = training.forkery.wait(training.pids)
    for pid in training.aside:
        os.kill(pid, signal.SIGTERM)
    training.forkery.wait(training.aside)
    assert statuses == [1, -signal.SIGKILL, 1]
    assert "Traceback" in training.log("0").read_text()
    assert "peer" in training.log("0").read_text().lower()
    spans = training.table("spans")
    assert set(spans["rank"]) == {0, 1, 2}
    assert (spans["flags"][spans["rank"] == 0] & int(Flag.TRUNCATED)).any()


OWN_CODE = """
import os, sys, time
import numpy as np
from torch import nn

class Sleeper(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, classes))
        self.calls = 0
    def forward(self, x):
        self.calls += 1
        if self.calls == 20 and open(f"/proc/{os.getpid()}/cmdline") and self.training and RANK_FILE():
            time.sleep(600)
        return self.layers(x)

def RANK_FILE():
    import torch.distributed as dist
    return dist.is_initialized() and dist.get_rank() == 2

def model(shape, classes):
    return Sleeper(int(np.prod(shape)), classes)

class Telling(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(size, classes))
        self.has_told = False
    def forward(self, x):
        if self.training and not self.has_told:
            self.has_told = True
            late = sorted(set(sys.modules) - sys.modules["__main__"].PRELOADED - {__name__})
            print("imported after the fork:", *late, flush=True)
        return self.layers(x)

def telling(shape, classes):
    return Telling(int(np.prod(shape)), classes)

def broken(shape, classes):
    raise RuntimeError("no such layer")

def data(seed):
    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, 400)
    inputs = (labels[:, None, None, None] + random.normal(0, 0.1, (400, 1, 8, 8))).astype(np.float32)
    return inputs[:300], labels[:300], inputs[300:], labels[300:]
"""


@pytest.fixture(scope="module")
def own_code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_workload.py").write_text(textwrap.dedent(OWN_CODE))
    return folder


def test_the_heartbeat_tells_who_hangs_and_sigterm_ends_all(train: Train, own_code: Path) -> None:
    workload = {
        "model": "own_workload:model",
        "dataset": "own_workload:data",
        "batch_size": 32,
        "stop": {"steps": 100},
    }
    training = train(workload, 4, path=own_code, wait=False)
    training.begin()
    training.wait_for(lambda: suspected(training, 1.0) == (2,))
    beats = read_heartbeats(training.output_dir.heartbeat, 4)
    assert [beat.pid for beat in beats] == training.pids
    assert beats[2].phase == "forward"
    assert {beats[rank].phase for rank in (0, 1, 3)} == {"comm"}
    pids = [*training.pids, *training.aside]
    # All are stopped until each has its signal, or one would fail because another is gone.
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
        for pid in pids:
            os.kill(pid, number)
    assert training.forkery.wait(pids) == [-signal.SIGTERM] * len(pids)


def suspected(training: Training, patience_s: float) -> tuple[int, ...]:
    return suspects(
        read_heartbeats(training.output_dir.heartbeat, 4), time.monotonic_ns(), patience_s
    )


def test_a_worker_that_fails_says_why(train: Train, own_code: Path) -> None:
    workload = {
        "model": "own_workload:broken",
        "dataset": "own_workload:data",
        "batch_size": 32,
        "stop": {"steps": 10},
    }
    training = train(workload, 2, path=own_code, wait=False)
    statuses = training.forkery.wait([*training.pids, training.aside[0]])
    os.kill(training.aside[1], signal.SIGKILL)
    training.forkery.wait([training.aside[1]])
    assert statuses == [1, 1, 1]
    assert "RuntimeError: no such layer" in training.log("0").read_text()


SMALL_MODULES = {"laggard.workloads.datasets.arrays", "torch.profiler._cupti_monitor"}


@pytest.mark.parametrize(
    "strategy",
    ["allreduce", "parameter_server", pytest.param("ad_psgd", marks=pytest.mark.long)],
)
def test_workers_import_next_to_nothing_until_the_first_step_and_time_ends_training(
    train: Train, own_code: Path, strategy: str
) -> None:
    """A worker may have a twentieth of a core, which importing would take seconds of. Time ends
    each of the trainings."""
    workload = {
        "model": "own_workload:telling",
        "dataset": "digits",
        "batch_size": 32,
        "stop": {"time": "1s"},
        "evaluate_every": 10**9,
        "strategy": strategy,
    }
    training = train(workload, 2, path=own_code)
    assert training.done()["stopped_by"] == "time"
    assert training.done()["makespan_s"] >= 1.0
    for rank in range(2):
        imported = re.search(r"imported after the fork: (.*)", training.log(str(rank)).read_text())
        assert imported is not None
        assert set(imported[1].split()) <= SMALL_MODULES
