"""Strategies that send less: what they learn, and what they say they have sent."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from laggard.workloads.models import build_model
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.output.worker_output import read_lines
from tests.workloads.test_allreduce import one_process, run_case

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery, Train, Training

TIERS = ["cloud", "edge", "edge"]
TENTH = {"name": "topk", "fraction": 0.1}
WHOLE = {"name": "topk", "fraction": 1.0}
UNEVEN = {"model": "mlp", "samples": 45, "batch_size": 20, "steps": 6}


def weights(folder: Path, rank: int = 0, what: str = "weights") -> np.ndarray:
    found: np.ndarray = np.load(folder / f"result-{rank}.npz")[what]
    return found


def test_what_is_sent_is_the_gradient_within_what_the_codec_leaves_out(
    forkery: Forkery, tmp_path: Path
) -> None:
    """All of a gradient is the gradient. Half precision, with gradients below 1 and six steps of
    0.1: each rank's, and each sum's, is off by 2^-11 of it at most."""
    cases = {"whole": {"strategy": {"compress": WHOLE}}, "fp16": {"strategy": "fp16"}}
    run_case(forkery, "uneven", tmp_path, 3, cases=cases, **UNEVEN)
    expected, _ = one_process("mlp", 45, 20, 6)
    np.testing.assert_allclose(weights(tmp_path / "whole"), expected, atol=1e-9, rtol=0)
    difference = np.abs(weights(tmp_path / "fp16") - expected).max()
    assert 0 < difference < 6 * 0.1 * 3 * 2.0**-11


def test_powersgd_is_exact_where_gradients_are_of_its_rank(
    forkery: Forkery, tmp_path: Path
) -> None:
    """A batch of two samples: every layer's gradient is the sum of two outer products."""
    cases = {
        str(rank): {"strategy": {"compress": {"name": "powersgd", "rank": rank}}} for rank in (1, 2)
    }
    case = {"model": "mlp", "samples": 46, "batch_size": 2, "steps": 6}
    run_case(forkery, "uneven", tmp_path, 2, cases=cases, **case)
    expected, _ = one_process("mlp", 46, 2, 6)
    assert np.allclose(weights(tmp_path / "2"), expected, atol=1e-3, rtol=0)
    assert not np.allclose(weights(tmp_path / "1"), expected, atol=1e-3, rtol=0)


@pytest.mark.long
def test_all_end_a_meeting_with_the_same_bits(forkery: Forkery, tmp_path: Path) -> None:
    """Parameters and BatchNorm's statistics, of tiers of two, one and two ranks."""
    every = {"local_sgd": {"steps": 2}, "hierarchical": {"wan_steps": 3}, "diloco": {"steps": 2}}
    sparse = {"name": "topk", "fraction": 0.05}
    cases = {
        f"{name}-{kind}": {"strategy": {"name": name, **meets, "compress": compress}}
        for name, meets in every.items()
        for kind, compress in (("sparse", sparse), ("fp16", "fp16"))
    }
    case = {
        **UNEVEN,
        "model": "resnet8",
        "momentum": 0.9,
        "tiers": ["a", "b", "a", "c", "c"],
        "batch_size": 30,
    }
    run_case(forkery, "uneven", tmp_path, 5, cases=cases, **case)
    for name in cases:
        states = [weights(tmp_path / name, rank, "state") for rank in range(5)]
        assert all(np.array_equal(state, states[0]) for state in states), name


def test_nothing_gets_lost_when_ddp_rearranges_its_buckets(
    forkery: Forkery, tmp_path: Path
) -> None:
    run_case(forkery, "rearranged", tmp_path, 1, fraction=0.02, steps=4)
    result = np.load(tmp_path / "result-0.npz")
    assert len(result["buckets"]) == 1 + 3 * 2, "one bucket in the first step, then two"
    assert 0 < np.count_nonzero(result["sent"]) < len(result["raw"]) / 2
    np.testing.assert_allclose(
        result["sent"] + result["kept"], 4 * result["raw"], rtol=1e-12, atol=1e-18
    )


@pytest.mark.parametrize(
    ("strategy", "steps"),
    [
        ("fp16", 4),
        pytest.param(TENTH, 6, marks=pytest.mark.long),
        ("powersgd", 12),
        pytest.param(
            {"name": "local_sgd", "steps": 2, "compress": "fp16"}, 6, marks=pytest.mark.long
        ),
        ({"name": "diloco", "steps": 2, "compress": TENTH}, 6),
    ],
)
def test_bytes_told_are_those_that_the_kernel_says_were_acknowledged(
    forkery: Forkery, tmp_path: Path, strategy: object, steps: int
) -> None:
    """Between two ranks, an all-reduce takes each as many bytes as the vector has, and an
    all-gather as many as its own part."""
    chosen = {"compress": TENTH} if strategy is TENTH else strategy
    run_case(forkery, "counted", tmp_path, 2, strategy=chosen, steps=steps)
    for rank in range(2):
        result = np.load(tmp_path / f"result-{rank}.npz")
        assert result["acknowledged"] == pytest.approx(int(result["told"]), rel=0.03)


DIGITS = {
    "model": "mlp",
    "dataset": "digits",
    "batch_size": 96,
    "optimizer": {"lr": 0.05},
    "stop": {"steps": 200},
}
SETTLED = {"stop": {"steps": 400}}
"""After 200 steps, one evaluation of `asynchronous` can be four points below the next one: whose
gradients are late depends on what else the machine does."""


@pytest.fixture(scope="module")
def baseline(train: Train) -> Training:
    return train(DIGITS, 2)


def accuracy(training: Training) -> float:
    """Where it has settled: the median of the last seven evaluations, or the last where there are
    fewer."""
    evaluations = [
        float(line["accuracy"] or 0) for line in read_lines(training.output_dir.evaluations)
    ]
    return float(np.median(evaluations[-7:])) if len(evaluations) >= 14 else evaluations[-1]


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ({"name": "hierarchical", "compress": TENTH}, 3),
        pytest.param({"name": "backup_workers", "compress": TENTH}, 3, marks=pytest.mark.long),
        *(
            pytest.param(strategy, 2, marks=pytest.mark.long)
            for strategy in (
                "fp16",
                "powersgd",
                {"compress": TENTH},
                {"name": "local_sgd", "compress": "fp16"},
                {"name": "local_sgd", "compress": TENTH},
                {"name": "diloco", "steps": 20, "compress": {"name": "topk", "fraction": 0.3}},
                {"name": "asynchronous", "compress": "fp16"},
            )
        ),
    ],
)
def test_digits_are_learnt_as_well_as_with_all_reduce(
    train: Train, baseline: Training, strategy: Mapping[str, object], ranks: int
) -> None:
    name = "" if isinstance(strategy, str) else strategy.get("name")
    stop = SETTLED if name in {"asynchronous", "backup_workers"} else {}
    training = train({**DIGITS, **stop, "strategy": strategy}, ranks, tiers=TIERS[:ranks])
    assert accuracy(training) >= accuracy(baseline) - 0.02


@pytest.mark.long
def test_pushing_all_of_it_is_pushing_it_uncompressed_bit_for_bit(train: Train) -> None:
    """BatchNorm's statistics and uneven batches included; pushes are larger for their places, and
    pulls are whole."""
    short = {**DIGITS, "model": "resnet8", "stop": {"steps": 12}, "evaluate_every": 10**9}
    losses = []
    for compress in (None, WHOLE):
        training = train(
            {**short, "strategy": {"name": "parameter_server", "compress": compress}}, 3
        )
        losses.append(training.table("steps").sort_values(["rank", "step"]).loss.to_numpy())
    assert np.array_equal(*losses)
    state, spans = FlatState(build_model("resnet8", (1, 8, 8), 10, 1)), training.table("spans")
    assert set(spans.bytes[spans.phase == "comm"]) == {
        0,
        state.bytes,
        state.bytes + 4 * state.parameters,
    }


WIDE = """
import numpy as np
from torch import nn

def model(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 2000), nn.ReLU(), nn.Linear(2000, classes))
"""


@pytest.mark.parametrize("compress", [pytest.param("fp16", marks=pytest.mark.long), TENTH])
def test_pushes_are_as_large_as_the_kernel_says_was_acknowledged(
    train: Train, tmp_path: Path, compress: object
) -> None:
    """All that workers had sent to the server at the last sample of the connections but what was
    under way just then."""
    (tmp_path / "wide.py").write_text(WIDE)
    strategy = {"name": "asynchronous", "compress": compress}
    workload = {
        **DIGITS,
        "model": "wide:model",
        "strategy": strategy,
        "evaluate_every": 10**9,
        "stop": {"steps": 120},
    }
    training = train(workload, 2, path=tmp_path)
    assert training.serving is not None
    port = int(training.serving.endpoint.addresses[-1].rpartition(":")[2])
    links, spans = training.table("links"), training.table("spans")
    last = links[links.dst_port == port].sort_values("time_ns").groupby("src_port").tail(1)
    assert len(last) == 2
    comm = spans[(spans.phase == "comm") & (spans.bytes > 0)].sort_values("start_ns")
    pushes = comm.groupby(["rank", "step"]).head(1)
    begun = pushes.bytes[pushes.start_ns <= last.time_ns.max()].sum()
    ended = pushes.bytes[pushes.start_ns + pushes.dur_ns <= last.time_ns.min()].sum()
    assert ended > 20 * pushes.bytes.iloc[0]
    assert ended * 0.99 <= last.bytes_acked.sum() <= begun * 1.01
