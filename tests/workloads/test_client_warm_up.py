"""The warm-up of a federated client: it computes like in a round, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from laggard.core.span_schema import Flag, Phase
from laggard.workloads.clients.local_steps import list_local_steps
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.datasets.dataset import Batch
from laggard.workloads.datasets.partition import Indices, Share
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.strategies.base.strategy import TrainingContext
from laggard.workloads.tracing.recorder import Recorder
from laggard.workloads.tracing.row_types import SPAN_ROW
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.tracing.stream import read_rows
from laggard.workloads.transport.endpoint import Endpoint
from laggard.workloads.workload import Workload
from laggard.workloads.workload_model import build_workload_model

BATCH = 8


@pytest.mark.parametrize("model_name", ["mlp", "resnet8"])
@pytest.mark.parametrize("samples", [0, 1, 5, 8, 9, 17, 67])
def test_a_warm_up_computes_all_shapes_and_changes_nothing(
    model_name: str, samples: int, tmp_path: Path
) -> None:
    workload = Workload.model_validate(
        {
            "model": model_name,
            "dataset": "digits",
            "optimizer": {"name": "sgd", "lr": 0.5, "momentum": 0.9},
            "strategy": {"name": "federated", "clients": 1, "local_batch": BATCH},
        }
    )
    prepare_data(workload, tmp_path)
    data = open_data(workload, tmp_path)
    model = build_workload_model(workload, data)
    optimizer = build_optimizer(workload.optimizer, model)
    shapes: set[int] = set()
    model.register_forward_hook(lambda _model, inputs, _output: shapes.add(len(inputs[0])))
    with Recorder(WorkerOutputDir(tmp_path), 0, 1) as recorder:
        endpoint = cast("Endpoint", object())
        context = TrainingContext(0, ("edge",), model, optimizer, recorder, endpoint=endpoint)
        client = workload.strategy.create_worker(context)
        state, begun = FlatState(model), FlatState(model).read()
        random = torch.random.get_rng_state()
        fetched: list[int] = []

        def fetch(indices: Indices) -> Batch:
            fetched.append(len(indices))
            return data.train.prepare(data.train.fetch(indices))

        client.warm_up(Share(np.arange(samples), samples or 1, 1), fetch)  # type: ignore[union-attr]
    assert torch.equal(state.read(), begun)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert not optimizer.state
    fewest = 2 if model_name == "resnet8" else 1
    usual = list_local_steps(max(samples, fewest), BATCH, fewest) if samples else []
    assert shapes == {*usual}
    assert sum(fetched) <= 3 * BATCH
    assert not len(read_rows(WorkerOutputDir(tmp_path).spans(0), SPAN_ROW))


def test_a_client_s_first_round_is_its_warm_up(tmp_path: Path) -> None:
    with Recorder(WorkerOutputDir(tmp_path), 0, 1, warm_up_steps=1) as recorder:
        for step in (7, 9):
            recorder.begin_step(step)
            recorder.enter(Phase.FORWARD, work=1)
            recorder.enter(Phase.COMM)
            recorder.end_step(StepResult(1.0), 1, 1)
    spans = read_rows(WorkerOutputDir(tmp_path).spans(0), SPAN_ROW)
    flagged = [bool(flags & Flag.WARM_UP) for flags in spans["flags"].tolist()]
    assert dict(zip(spans["step"].tolist(), flagged, strict=True)) == {7: True, 9: False}
