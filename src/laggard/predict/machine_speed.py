"""Seconds of a workload's steps on one core of this machine, measured in a moment.

Each size of batch is trained a few times on a copy of the model, as workers do before they are
limited to a share of a core (`laggard.workloads.tracing.full_speed`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from laggard.core.cost_model.message_handling import MessageHandling
from laggard.core.cost_model.step_seconds import StepSeconds
from laggard.core.errors import InputError
from laggard.workloads.workload import Workload

if TYPE_CHECKING:
    import torch
    from torch import nn

_WARM_UP = 2
_REPEATS = 9
_BUDGET_S = 1.0
_SIZES = 6
_LOW, _USUAL, _HIGH = 0.05, 0.25, 0.75
"""Quantiles of the repeated steps. Other programs only ever lengthen a step, so the usual seconds
are those of a lower quartile, as for workers (`fit_step_cost` of `full_speed.py`)."""


@dataclass(frozen=True)
class MachineSpeed:
    """Seconds of a step on a whole core, by the number of samples.

    Attributes:
        samples: measured numbers of samples, ascending, [N].
        low_s: short steps, [N].
        usual_s: usual steps, [N].
        high_s: long steps, [N].
        parameter_bytes: bytes of the model's parameters.
        buffer_bytes: bytes of the model's buffers, by their type.
        sample_bytes: bytes of a sample in storage.
        accesses: storage accesses of a step of one sample, and of each further sample.
        handling: processor time of messages and updates.
    """

    samples: tuple[int, ...]
    low_s: tuple[float, ...]
    usual_s: tuple[float, ...]
    high_s: tuple[float, ...]
    parameter_bytes: int
    buffer_bytes: tuple[float, ...]
    sample_bytes: float
    accesses: tuple[int, int]
    handling: MessageHandling

    def step(self, samples: int) -> StepSeconds:
        """Return the seconds of a step; between measured sizes they lie on a line."""
        low_s, usual_s, high_s = (
            float(np.interp(samples, self.samples, each))
            for each in (self.low_s, self.usual_s, self.high_s)
        )
        return StepSeconds(low_s, usual_s, high_s)

    def step_accesses(self, samples: int) -> int:
        """Return the storage accesses of a step."""
        first, further = self.accesses
        return first + further * (samples - 1)


def choose_sizes(samples: Iterable[int]) -> tuple[int, ...]:
    """Return at most six numbers of samples that span the given ones, in equal ratios."""
    least, most = min(given := {*samples}), max(given)
    if len(given) <= _SIZES:
        return tuple(sorted(given))
    spread = np.geomspace(least, most, _SIZES)
    return tuple(sorted({round(float(size)) for size in spread}))


def measure_machine_speed(workload: Workload, samples: Sequence[int]) -> MachineSpeed:
    """Measure steps of a workload on one core of this machine.

    Args:
        workload: workload of a scenario, with the absolute path of its dataset's folder.
        samples: numbers of samples of one worker that shall be known.

    Raises:
        InputError: no number is given, or the model or the data are invalid.
    """
    if not samples:
        raise InputError("no number of samples was given — give at least one")
    import torch

    from laggard.workloads.models.one_thread import compute_on_one_thread

    with (
        compute_on_one_thread(),
        tempfile.TemporaryDirectory(prefix="laggard-predict-") as folder,
        torch.random.fork_rng(devices=[]),
    ):
        return _measure(workload, choose_sizes(samples), Path(folder))


def measure_handling(workload: Workload, model: nn.Module) -> MessageHandling:
    """Measure what messages with the model and updates of it cost; the model is changed."""
    import torch

    from laggard.predict.message_speed import measure_message_handling
    from laggard.workloads.models.optimizers import build_optimizer

    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    return measure_message_handling(model, build_optimizer(workload.optimizer, model))


def measure_buffers(model: nn.Module) -> tuple[float, ...]:
    """Return the bytes of a model's buffers by their type; DDP broadcasts each type at once."""
    sizes: dict[torch.dtype, float] = {}
    for each in model.buffers():
        sizes[each.dtype] = sizes.get(each.dtype, 0.0) + each.numel() * each.element_size()
    return tuple(sizes.values())


def _measure(workload: Workload, sizes: Sequence[int], folder: Path) -> MachineSpeed:
    from functools import partial

    from laggard.workloads.datasets import open_data, prepare_data
    from laggard.workloads.models import build_model
    from laggard.workloads.models.optimizers import build_optimizer
    from laggard.workloads.strategies.base.step_encoder import create_step_encoder
    from laggard.workloads.tracing.batch_loader import fewest_samples, pad_indices
    from laggard.workloads.tracing.full_speed import learner_on_a_copy, time_steps

    prepare_data(workload, folder)
    data = open_data(workload, folder)
    model = build_model(
        workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary
    )
    learn = learner_on_a_copy(
        model,
        partial(build_optimizer, workload.optimizer),
        create_step_encoder(workload.strategy),
        reads=workload.strategy.background_exchange,
    )
    fewest, count = fewest_samples(model), len(data.train)
    quantiles = []
    for size in sizes:
        indices = pad_indices(np.arange(size, dtype=np.int64) % count, fewest)
        seconds = time_steps(data.train, indices, learn, _WARM_UP, _REPEATS, _BUDGET_S)
        quantiles.append(np.quantile(seconds, (_LOW, _USUAL, _HIGH)).tolist())
    low_s, usual_s, high_s = zip(*quantiles, strict=True)
    one, two = (data.train.fetch(np.arange(each, dtype=np.int64) % count) for each in (1, 2))
    parameters = sum(each.numel() * each.element_size() for each in model.parameters())
    return MachineSpeed(
        samples=tuple(sizes),
        low_s=low_s,
        usual_s=usual_s,
        high_s=high_s,
        parameter_bytes=parameters,
        buffer_bytes=measure_buffers(model),
        sample_bytes=two.stored_bytes - one.stored_bytes,
        accesses=(one.accesses, two.accesses - one.accesses),
        handling=measure_handling(workload, model),
    )
