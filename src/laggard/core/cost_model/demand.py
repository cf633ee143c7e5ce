"""Demands of a training step: operations, tensors, and data over the network."""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from laggard.core.cost_model.arrays import FloatArray
from laggard.core.errors import InputError


class CostTerm(enum.StrEnum):
    """Term of the formula; its coefficient times its quantity is a part of the step's seconds."""

    FIXED = "fixed"
    FLOPS = "FLOPs"
    TENSORS = "tensors"
    TRANSFER = "bytes / rate"
    LATENCY = "latency x rounds"


COMPUTE_TERMS = (CostTerm.FIXED, CostTerm.FLOPS, CostTerm.TENSORS)
"""Terms of a step without communication."""


def require_quantity(name: str, value: float, fix: str, *, positive: bool = False) -> None:
    """Raise an error unless a quantity is finite and at least zero.

    Args:
        name: name of the quantity, with its unit.
        value: the quantity.
        fix: advice for the user.
        positive: whether zero is refused too.

    Raises:
        InputError: the value is negative, infinite or not a number.
    """
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        rule = "greater than 0" if positive else "at least 0"
        raise InputError(f"{name} is {value} and must be finite and {rule} — {fix}")


@dataclass(frozen=True)
class TransferDemand:
    """Communication of one step over one bottleneck link.

    Attributes:
        sent_bytes: bytes that pass over the link, one after the other.
        rate_mbps: rate of the link in Mbit/s, as far as this transfer can use it.
        latency_ms: one-way delay of a message in ms.
        rounds: number of messages that must follow one another.

    Examples:
        >>> TransferDemand(sent_bytes=1e6, rate_mbps=100.0, latency_ms=5.0, rounds=2).transfer_s
        0.08
    """

    sent_bytes: float
    rate_mbps: float
    latency_ms: float = 0.0
    rounds: float = 1.0

    def __post_init__(self) -> None:
        require_quantity("sent_bytes", self.sent_bytes, "give the bytes of one step")
        require_quantity(
            "rate_mbps", self.rate_mbps, "give the rate of the link in Mbit/s", positive=True
        )
        require_quantity("latency_ms", self.latency_ms, "give the one-way delay in ms")
        require_quantity("rounds", self.rounds, "give the number of successive messages")

    @property
    def transfer_s(self) -> float:
        """Return the seconds that the bytes are on the wire."""
        return self.sent_bytes * 8e-6 / self.rate_mbps

    @property
    def latency_s(self) -> float:
        """Return the seconds that the rounds wait for messages on their way."""
        return self.latency_ms * 1e-3 * self.rounds


@dataclass(frozen=True)
class StepDemand:
    """Quantities of one step that the terms of the formula multiply.

    Attributes:
        flops: floating-point operations of the forward and the backward pass.
        tensors: number of parameter tensors.
        transfer: communication of the step; None without communication.

    Examples:
        >>> from laggard.core.cost_model.demand import CostTerm
        >>> StepDemand(flops=2e9, tensors=62).quantities([CostTerm.FIXED, CostTerm.TENSORS])
        array([ 1., 62.])
    """

    flops: float
    tensors: float
    transfer: TransferDemand | None = None

    def __post_init__(self) -> None:
        require_quantity("flops", self.flops, "give the operations of one step")
        require_quantity("tensors", self.tensors, "give the number of parameter tensors")

    def quantity(self, term: CostTerm) -> float:
        """Return what the coefficient of a term multiplies; 1 for the fixed term."""
        match term:
            case CostTerm.FIXED:
                return 1.0
            case CostTerm.FLOPS:
                return float(self.flops)
            case CostTerm.TENSORS:
                return float(self.tensors)
            case CostTerm.TRANSFER:
                return 0.0 if self.transfer is None else self.transfer.transfer_s
            case CostTerm.LATENCY:
                return 0.0 if self.transfer is None else self.transfer.latency_s

    def quantities(self, terms: Sequence[CostTerm]) -> FloatArray:
        """Return the quantities of several terms, [terms]."""
        return np.array([self.quantity(term) for term in terms])


@dataclass(frozen=True)
class ModelDemand:
    """Size of a model as far as it affects the seconds of a step.

    Attributes:
        flops_per_sample: operations of the forward and the backward pass for one sample.
        tensors: number of parameter tensors.
        parameter_bytes: bytes of all parameters, which are also the bytes of their gradients.

    Examples:
        >>> mlp = ModelDemand(flops_per_sample=40_000, tensors=4, parameter_bytes=38_440)
        >>> mlp.step(samples=32).flops
        1280000
    """

    flops_per_sample: float
    tensors: int
    parameter_bytes: int

    def __post_init__(self) -> None:
        require_quantity("flops_per_sample", self.flops_per_sample, "count the model again")
        require_quantity("tensors", self.tensors, "count the model again")
        require_quantity("parameter_bytes", self.parameter_bytes, "count the model again")

    def step(self, samples: int, transfer: TransferDemand | None = None) -> StepDemand:
        """Return the demand of a step of `samples` samples on one worker."""
        require_quantity("samples", samples, "give the samples of one worker per step")
        return StepDemand(self.flops_per_sample * samples, self.tensors, transfer)
