"""Encoder of every step's gradients, for measurements of a step's cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from laggard.workloads.strategies.base.parameters import CompressibleParameters, Parameters

if TYPE_CHECKING:
    import torch


def create_step_encoder(strategy: Parameters) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Create the encoder of every step's gradients, if the strategy sends them compressed."""
    from laggard.workloads.compress.codec import ErrorFeedbackCodec, create_vector_codec

    if not isinstance(strategy, CompressibleParameters) or not strategy.encodes_every_step:
        return None
    codec = create_vector_codec(strategy.compress)
    return None if codec is None else ErrorFeedbackCodec(codec).encode
