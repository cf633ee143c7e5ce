"""DDP as we use it: weighted gradients, and who is charged for whose lateness."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from laggard.core.span_schema import Lane, Phase
from laggard.workloads.datasets.partition import Partition
from laggard.workloads.models import build_model
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.tracing.stream import SPAN_ROW, Rows, read_rows

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery

SLOW_STEPS = [8, 9, 10, 11, 12]


def run_case(
    forkery: Forkery, case: str, folder: Path, world_size: int, **settings: object
) -> None:
    pids = []
    for rank in range(world_size):
        argument = json.dumps(
            {"rank": rank, "world_size": world_size, "folder": str(folder), **settings}
        )
        pids.append(forkery.spawn(f"gloo_cases:{case}", argument, folder / f"{rank}.log"))
    statuses = forkery.wait(pids)
    assert statuses == [0] * world_size, "\n".join(log.read_text() for log in folder.glob("*.log"))


def one_process(
    model: str, samples: int, batch_size: int, steps: int
) -> tuple[np.ndarray, list[float]]:
    """The same training by textbook: the mean loss of every whole batch, one process, no DDP."""
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, 1, 8, 8, generator=random).double()
    labels = torch.randint(0, 10, (samples,), generator=random)
    net = build_model(model, (1, 8, 8), 10, 3).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        batch = Partition(samples, batch_size, 1, 7).share(step, 0).indices
        loss = cross_entropy(net(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.cat([p.detach().flatten() for p in net.parameters()]).numpy(), losses


@pytest.mark.parametrize(
    ("model", "world_size", "samples"), [("cnn", 3, 45), ("transformer", 4, 41), ("mlp", 4, 42)]
)
def test_uneven_batches_train_as_one_process(
    forkery: Forkery, tmp_path: Path, model: str, world_size: int, samples: int
) -> None:
    """Batches of 20, 20 and the rest: unequal shares, and with 41 or 42 samples on 4 ranks some get
    none."""
    run_case(
        forkery,
        "uneven",
        tmp_path,
        world_size,
        model=model,
        samples=samples,
        batch_size=20,
        steps=6,
    )
    expected, expected_losses = one_process(model, samples, 20, 6)
    ranks = [np.load(tmp_path / f"result-{rank}.npz") for rank in range(world_size)]
    for rank in ranks:
        np.testing.assert_allclose(rank["weights"], expected, atol=1e-9, rtol=0)
        assert np.array_equal(rank["weights"], ranks[0]["weights"])
    partition = Partition(samples, 20, world_size, 7)
    for step in range(6):
        counts = [len(partition.share(step, rank).indices) for rank in range(world_size)]
        weighted = sum(n * r["losses"][step] for n, r in zip(counts, ranks, strict=True) if n)
        assert weighted / sum(counts) == pytest.approx(expected_losses[step], abs=1e-9)


def main_lane(folder: Path, rank: int) -> Rows:
    rows = read_rows(WorkerOutputDir(folder).spans(rank), SPAN_ROW)
    return rows[rows["lane"] == Lane.MAIN]


def duration_ms(rows: Rows, phase: Phase, steps: list[int], group: int | None = None) -> float:
    """Median over steps of the time in a phase."""
    chosen = rows[(rows["phase"] == phase.code) & (np.isin(rows["step"], steps))]
    if group is not None:
        chosen = chosen[chosen["group"] == group]
    totals = [chosen["dur_ns"][chosen["step"] == step].sum() for step in steps]
    return float(np.median(totals)) / 1e6


@pytest.mark.parametrize("compress", [None, "topk", "powersgd"])
def test_a_late_peer_lengthens_communication_and_not_the_backward_pass(
    forkery: Forkery, tmp_path: Path, compress: str | None
) -> None:
    case = {
        "steps": 20,
        "slow_steps": SLOW_STEPS,
        "sleep_s": 0.1,
        "phase": "backward",
        "batch_norm": False,
    }
    run_case(forkery, "timed", tmp_path, 3, compress=compress, **case)
    normal = [step for step in range(5, 20) if step not in SLOW_STEPS]
    for rank in (0, 2):
        rows = main_lane(tmp_path, rank)
        assert duration_ms(rows, Phase.BACKWARD, SLOW_STEPS) < 30
        assert duration_ms(rows, Phase.COMM, SLOW_STEPS) > 60
        assert duration_ms(rows, Phase.COMM, normal) < 50
        assert duration_ms(rows, Phase.FORWARD, SLOW_STEPS) < 30
    guilty = main_lane(tmp_path, 1)
    assert duration_ms(guilty, Phase.BACKWARD, SLOW_STEPS) >= 100
    assert duration_ms(guilty, Phase.COMM, SLOW_STEPS) < 50


@pytest.mark.parametrize("compress", [None, "topk", "powersgd", "fp16"])
def test_the_end_of_the_backward_pass_is_the_one_ddp_logs(
    forkery: Forkery, tmp_path: Path, compress: str | None
) -> None:
    case = {
        "steps": 30,
        "slow_steps": SLOW_STEPS,
        "sleep_s": 0.05,
        "phase": "backward",
        "batch_norm": False,
    }
    run_case(forkery, "timed", tmp_path, 2, compress=compress, **case)
    for rank in range(2):
        result = np.load(tmp_path / f"result-{rank}.npz")
        differences_us = np.abs(result["own"] - result["theirs"])[1:] / 1e3
        assert np.median(differences_us) < 100
        backward = main_lane(tmp_path, rank)
        backward = backward[backward["phase"] == Phase.BACKWARD.code]
        assert len(backward) == 30


def test_a_buffer_broadcast_is_communication_and_not_forward(
    forkery: Forkery, tmp_path: Path
) -> None:
    run_case(
        forkery,
        "timed",
        tmp_path,
        3,
        steps=20,
        slow_steps=SLOW_STEPS,
        sleep_s=0.1,
        phase="forward",
        batch_norm=True,
    )
    for rank in range(3):
        rows = main_lane(tmp_path, rank)
        comm = rows[rows["phase"] == Phase.COMM.code]
        for step in range(20):
            of_step = rows[rows["step"] == step]
            order = [
                Phase.COMM.code,
                Phase.FORWARD.code,
                Phase.BACKWARD.code,
                Phase.COMM.code,
                Phase.OPTIMIZER.code,
            ]
            assert [p for p in of_step["phase"] if p != Phase.OTHER.code] == order
            assert comm["group"][comm["step"] == step].tolist() == [0, 1]
        assert (comm["bytes"][comm["group"] == 0] == 256 * 2 * 4 + 8).all()
    innocent = main_lane(tmp_path, 0)
    assert duration_ms(innocent, Phase.FORWARD, SLOW_STEPS) < 30
    assert duration_ms(main_lane(tmp_path, 1), Phase.FORWARD, SLOW_STEPS) >= 100


@pytest.mark.parametrize(("compress", "count"), [(None, 2), ("topk", 2), ("powersgd", 1)])
def test_buckets_on_request(
    forkery: Forkery, tmp_path: Path, compress: str | None, count: int
) -> None:
    """Of a model that DDP reduces in two, where it may: PowerSGD's collectives follow upon each
    other."""
    case = {"steps": 12, "slow_steps": [], "sleep_s": 0.0, "phase": "forward", "hidden": 600}
    run_case(forkery, "timed", tmp_path, 2, trace_buckets=True, compress=compress, **case)
    rows = read_rows(WorkerOutputDir(tmp_path).spans(0), SPAN_ROW)
    buckets = rows[rows["lane"] == Lane.BUCKETS]
    assert sorted(set(buckets["step"].tolist())) == list(range(12))
    gradient_bytes = rows["bytes"][(rows["lane"] == Lane.MAIN) & (rows["phase"] == Phase.COMM.code)]
    numbers = 64 * 600 + 600 + 600 * 600 + 600 + 600 * 10 + 10
    assert (
        (gradient_bytes[-1] == numbers * 4)
        if compress is None
        else (gradient_bytes[-1] < numbers * 4 / 10)
    )
    for step in range(12):
        of_step = buckets[buckets["step"] == step]
        assert len(of_step) == (count if step else 1)
        assert of_step["bytes"].sum() == gradient_bytes[step]
        assert (of_step["dur_ns"] > 0).all()
