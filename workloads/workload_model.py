"""Model that a workload begins with: built from the seed, or with the weights of an earlier run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from laggard.workloads.models import build_model
from laggard.workloads.models.model_state import load_weights

if TYPE_CHECKING:
    from torch import nn

    from laggard.workloads.datasets.dataset import Data
    from laggard.workloads.workload import Workload


def build_workload_model(workload: Workload, data: Data) -> nn.Module:
    """Build the model of a workload for its dataset.

    Every rank, the server and the evaluator thus begin with the same weights.

    Raises:
        InputError: the model cannot process the data, or the file of weights is another model's.
    """
    model = build_model(
        workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary
    )
    if workload.initial_weights is not None:
        load_weights(Path(workload.initial_weights), model)
    return model


def build_model_shapes(workload: Workload, data: Data) -> nn.Module:
    """Build the model of a workload without its numbers, on torch's device `meta`.

    Raises:
        InputError: the model cannot process the data.
    """
    import torch

    with torch.device("meta"):
        return build_model(
            workload.model, data.input_shape, data.classes, workload.seed, data.vocabulary
        )
