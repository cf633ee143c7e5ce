"""What steps take at full speed: the line through what ranks measured, and a measurement that
leaves no trace."""

from __future__ import annotations

import multiprocessing
import os
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.span_schema import COMPUTE_PHASES
from laggard.core.work_counter import WorkCounter, WorkDone
from laggard.workloads.datasets.arrays import ArraySplit
from laggard.workloads.models import build_model
from laggard.workloads.strategies.base.step_encoder import create_step_encoder
from laggard.workloads.tracing.compute_meter import ComputeMeter
from laggard.workloads.tracing.full_speed import (
    FullSpeed,
    Timed,
    alone_on_core,
    fit_step_cost,
    learner_on_a_copy,
    measure_steps,
    read_timed,
    write_timed,
)
from laggard.workloads.workload import Workload

if TYPE_CHECKING:
    from tests.workloads.conftest import Train

_MS = 1_000_000
_SPLIT = ArraySplit(np.zeros((64, 1, 8, 8), dtype=np.uint8), np.zeros(64, dtype=np.int64))


@given(
    st.integers(0, 10**8),
    st.integers(1, 10**6),
    st.integers(1, 60),
    st.integers(1, 8),
    st.integers(1, 200),
)
def test_times_on_a_line_are_found_again(
    base: int, each: int, few: int, ranks: int, samples: int
) -> None:
    many = 2 * few
    speed = fit_step_cost([Timed(few, base + few * each, many, base + many * each)] * ranks)
    assert speed.step_ns(samples) == pytest.approx(base + samples * each, rel=1e-6, abs=2)


def test_a_rank_that_was_disturbed_does_not_count() -> None:
    steady = Timed(10, 10 * _MS, 20, 20 * _MS)
    assert (
        fit_step_cost([steady] * 6 + [Timed(10, 70 * _MS, 20, 300 * _MS)] * 2).step_ns(20)
        == 20 * _MS
    )


@pytest.mark.parametrize(
    "timed",
    [
        Timed(10, 20 * _MS, 20, 18 * _MS),
        Timed(10, 2 * _MS, 20, 18 * _MS),
        Timed(20, 18 * _MS, 20, 18 * _MS),
    ],
    ids=["more samples in less time", "more than twice for twice", "one size only"],
)
def test_chance_makes_no_line_that_falls_or_begins_below_nothing(timed: Timed) -> None:
    speed = fit_step_cost([timed])
    assert speed.base_ns >= 0
    assert speed.sample_ns >= 0
    assert speed.step_ns(20) == 18 * _MS


def test_nobody_s_measurement_is_refused() -> None:
    with pytest.raises(ValueError, match="no rank"):
        fit_step_cost([])


def test_ranks_read_what_all_ranks_wrote(tmp_path: Path) -> None:
    path = tmp_path / "full_speed"
    write_timed(path, 3, Timed(1, 2, 3, 4))
    write_timed(path, 1, Timed(5, 6, 7, 8))
    assert read_timed(path) == (Timed(5, 6, 7, 8), Timed(1, 2, 3, 4))


def test_measuring_leaves_the_model_its_gradients_and_the_dice_alone() -> None:
    model = build_model("resnet8", (1, 8, 8), 10, 1, None)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    dice = torch.random.get_rng_state()
    learn = learner_on_a_copy(model, lambda each: torch.optim.SGD(each.parameters(), lr=0.1))
    timed = measure_steps(_SPLIT, np.arange(32), 2, learn)
    assert (timed.few, timed.many) == (16, 32)
    assert min(timed.few_ns, timed.many_ns) > 0
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.random.get_rng_state(), dice)


def test_what_is_done_with_gradients_before_they_are_sent_is_measured_too() -> None:
    model = build_model("mlp", (1, 8, 8), 10, 1, None)
    asked = [Workload.model_validate({"model": "mlp", "dataset": "digits", "strategy": each}).strategy for each in
             ("allreduce", "powersgd", {"name": "local_sgd", "compress": "fp16"}, "ring_allreduce", "topk",
              {"name": "asynchronous", "compress": "fp16"})]  # fmt: skip
    assert [create_step_encoder(each) is not None for each in asked] == [
        False,
        False,
        False,
        False,
        True,
        True,
    ]
    lengths: list[int] = []
    sgd = partial(torch.optim.SGD, lr=0.1)
    learn = learner_on_a_copy(
        model, lambda each: sgd(each.parameters()), lambda vector: lengths.append(len(vector))
    )
    measure_steps(_SPLIT, np.arange(8), 1, learn)
    assert set(lengths) == {sum(parameter.numel() for parameter in model.parameters())}


def test_one_sample_where_the_model_needs_two() -> None:
    timed = measure_steps(_SPLIT, np.array([4, 4]), 2, lambda batch: None)
    assert (timed.few, timed.many) == (2, 2)


def _stay(path: Path, log: Path) -> None:
    with alone_on_core(path):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, b"(")
        time.sleep(0.02)
        os.write(descriptor, b")")
        os.close(descriptor)


def test_one_at_a_time_on_a_core(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    stays = [
        fork.Process(target=_stay, args=(tmp_path / "lock", tmp_path / "log")) for _ in range(6)
    ]
    for each in stays:
        each.start()
    for each in stays:
        each.join()
    assert (tmp_path / "log").read_text() == "()" * 6


def test_cpu_time_of_computing_is_counted_and_of_nothing_else(tmp_path: Path) -> None:
    with WorkCounter(tmp_path / "work") as counter:
        meter = ComputeMeter(counter, FullSpeed(1 * _MS, 2 * _MS))
        for _ in range(2):
            meter.begin()
            _compute(20)
            meter.end()
            _compute(50)
        meter.finish(3)
        done = counter.read()
        assert (done.steps, done.full_speed_ns) == (1, 7 * _MS)
        assert 40 * _MS <= done.cpu_ns < 90 * _MS, "none of twice fifty"
        meter.finish(0)
        assert counter.read() == WorkDone(2, 8 * _MS, done.cpu_ns)


def _compute(cpu_ms: int) -> None:
    until_ns = time.thread_time_ns() + cpu_ms * _MS
    while time.thread_time_ns() < until_ns:
        pass


def test_a_training_counts_the_work_of_every_step(train: Train) -> None:
    settings = {"model": "resnet8", "dataset": "digits", "batch_size": 128, "stop": {"steps": 30}}
    training = train(settings, 2, change={"shared": True})
    spans = training.table("spans")
    computing = spans[spans.phase.isin([str(phase) for phase in COMPUTE_PHASES])]
    for rank in range(2):
        with WorkCounter(training.output_dir.work(rank)) as counter:
            done = counter.read()
        assert done.steps == 30
        wall_ns = computing[computing["rank"] == rank].dur_ns.sum()
        assert 0 < done.cpu_ns <= 1.01 * wall_ns
        assert done.full_speed_ns > 0


def test_a_rank_that_nobody_holds_counts_nothing(train: Train) -> None:
    training = train(
        {"model": "mlp", "dataset": "digits", "batch_size": 128, "stop": {"steps": 5}}, 2
    )
    assert not training.output_dir.work(0).exists()
    assert not training.output_dir.full_speed.exists()
