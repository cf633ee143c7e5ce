"""Processor time of a client's round besides its steps: to load the model, and to find its change.

An emulation charges a worker the time of its steps at full speed, and the processor time of
everything else as it is.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.datasets.partition import Share
from laggard.workloads.models.flat_state import FlatState
from laggard.workloads.models.one_thread import compute_on_one_thread
from laggard.workloads.models.optimizers import build_optimizer
from laggard.workloads.strategies.federated.local_training import (
    LocalTrainer,
    LocalTraining,
    NoTracer,
)
from laggard.workloads.tracing.batch_loader import fewest_samples, pad_indices
from laggard.workloads.workload import Workload
from laggard.workloads.workload_model import build_workload_model

_REPEATS = 15


def measure_round_overhead(workload: Workload, local: LocalTraining) -> float:
    """Return the seconds of a round besides its steps, on a whole core of this machine.

    Rounds of one step and of two are timed in turns. Twice the first less the second has no step.

    Args:
        workload: workload of a scenario, with the absolute path of its dataset's folder.
        local: settings of a client's round.
    """
    with tempfile.TemporaryDirectory(prefix="laggard-round-") as folder, compute_on_one_thread():
        prepare_data(workload, Path(folder))
        data = open_data(workload, Path(folder))
        model = build_workload_model(workload, data)
        state = FlatState(model)
        sent = state.read()
        count = min(local.batch, len(data.train))
        share = Share(np.arange(count, dtype=np.int64), count, 1)
        padded = pad_indices(share.indices, fewest_samples(model))
        batch = data.train.prepare(data.train.fetch(padded))
        trainers = [
            LocalTrainer(
                LocalTraining(epochs, count, local.proximal),
                model,
                build_optimizer(workload.optimizer, model),
                workload.seed,
                NoTracer(),
            )
            for epochs in (1, 2)
        ]
        found = []
        for _ in range(_REPEATS):
            seconds = []
            for trainer in trainers:
                began_s = time.process_time()
                state.write(sent)
                trainer.train(0, 0, batch, share)
                seconds.append(time.process_time() - began_s)
            one_s, two_s = seconds
            found.append(2 * one_s - two_s)
    return max(statistics.median(found), 0.0)
