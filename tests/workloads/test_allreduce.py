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
from laggard.workloads.tracing.row_types import SPAN_ROW, Rows
from laggard.workloads.tracing.stream import read_rows

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery

SLOW_STEPS = [8, 9, 10, 11, 12]
SLEEP_S = 0.1


def run_case(
    forkery: Forkery,
    case: str,
    folder: Path,
    world_size: int,
    module: str = "gloo_cases",
    **settings: object,
) -> None:
    pids = []
    for rank in range(world_size):
        argument = json.dumps(
            {"rank": rank, "world_size": world_size, "folder": str(folder), **settings}
        )
        pids.append(forkery.spawn(f"{module}:{case}", argument, folder / f"{rank}.log"))
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
    ("world_size", "samples_of"), [(3, {"cnn": 45}), (4, {"transformer": 41, "mlp": 42})]
)
def test_uneven_batches_train_as_one_process(
    forkery: Forkery, tmp_path: Path, world_size: int, samples_of: dict[str, int]
) -> None:
    """Batches of 20, 20 and the rest: unequal shares, and with 41 or 42 samples on 4 ranks some get
    none."""
    cases = {model: {"model": model, "samples": samples} for model, samples in samples_of.items()}
    run_case(forkery, "uneven", tmp_path, world_size, cases=cases, batch_size=20, steps=6)
    for model, samples in samples_of.items():
        expected, expected_losses = one_process(model, samples, 20, 6)
        ranks = [np.load(tmp_path / model / f"result-{rank}.npz") for rank in range(world_size)]
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


def spans_of(rows: Rows, phase: Phase, steps: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """When the last span of a phase begins and ends in each of these steps."""
    chosen = rows[rows["phase"] == phase.code]
    last = np.array([chosen[chosen["step"] == step][-1] for step in steps])
    return last["start_ns"], last["start_ns"] + last["dur_ns"]


def waits_in_communication(innocent: Rows, guilty: Rows, phase: Phase) -> bool:
    """Whether a phase ends before the late rank's does, in most of the steps in which that one
    sleeps.

    A wait that counted to the phase would make it end after, in every step.
    """
    _, own_ns = spans_of(innocent, phase, SLOW_STEPS)
    _, late_ns = spans_of(guilty, phase, SLOW_STEPS)
    return bool((own_ns < late_ns).sum() > len(SLOW_STEPS) / 2)


@pytest.mark.parametrize(
    "compress",
    [
        None,
        pytest.param("topk", marks=pytest.mark.long),
        "powersgd",
        pytest.param("fp16", marks=pytest.mark.long),
    ],
)
def test_a_late_peer_lengthens_communication_and_not_the_backward_pass(
    forkery: Forkery, tmp_path: Path, compress: str | None
) -> None:
    """The backward pass ends when DDP itself logs it: after it began, and before the gradients of
    all are there."""
    case = {
        "steps": 20,
        "slow_steps": SLOW_STEPS,
        "sleep_s": SLEEP_S,
        "phase": "backward",
        "batch_norm": False,
    }
    run_case(forkery, "timed", tmp_path, 3, compress=compress, **case)
    ranks = [main_lane(tmp_path, rank) for rank in range(3)]
    guilty = ranks[1]
    begun_ns, late_ns = spans_of(guilty, Phase.BACKWARD, SLOW_STEPS)
    assert (late_ns - begun_ns >= SLEEP_S * 1e9).all()
    for rank in (0, 2):
        _, ended_ns = spans_of(ranks[rank], Phase.COMM, SLOW_STEPS)
        assert (ended_ns - begun_ns >= SLEEP_S * 1e9).all(), "gradients come after the sleep"
        assert waits_in_communication(ranks[rank], guilty, Phase.BACKWARD)
    steps = list(range(1, 20))
    for rank, rows in enumerate(ranks):
        logged_ns = np.load(tmp_path / f"result-{rank}.npz")["logged_ns"][1:]
        begun_ns, _ = spans_of(rows, Phase.BACKWARD, steps)
        assert (begun_ns < logged_ns).all()
        assert (logged_ns < spans_of(rows, Phase.COMM, steps)[1]).all()
        if rank == 1:
            slept = np.isin(steps, SLOW_STEPS)
            assert (logged_ns - begun_ns >= SLEEP_S * 1e9)[slept].all()


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
        sleep_s=SLEEP_S,
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
    guilty = main_lane(tmp_path, 1)
    begun_ns, ended_ns = spans_of(guilty, Phase.FORWARD, SLOW_STEPS)
    assert (ended_ns - begun_ns >= SLEEP_S * 1e9).all()
    assert waits_in_communication(main_lane(tmp_path, 0), guilty, Phase.FORWARD)


@pytest.mark.parametrize(
    ("compress", "count"),
    [(None, 2), pytest.param("topk", 2, marks=pytest.mark.long), ("powersgd", 1)],
)
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
