"""GPUs of a node, and their suitability for workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

OLDEST_CAPABILITY = (7, 5)
OLDEST_DRIVER = 580
"""Oldest capability and driver that CUDA 13 supports; PyTorch's own wheels are built with CUDA 13
(https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/)."""


@dataclass(frozen=True)
class Gpu:
    """GPU of a node.

    Attributes:
        model: name that the NVIDIA driver reports
        capability: compute capability; None if the driver does not report it
        driver: major version of the driver; None if it is not reported
    """

    model: str
    capability: tuple[int, int] | None = None
    driver: int | None = None


def parse_gpu(line: str) -> Gpu:
    """Parse a line of nvidia-smi: `name, compute_cap, driver_version`.

    Old drivers report the name only.
    """
    model, *rest = (part.strip() for part in line.split(","))
    capability, driver = ([*rest, "", ""])[:2]
    known = re.fullmatch(r"(\d{1,3})\.(\d{1,3})", capability, re.ASCII)
    major = re.match(r"\d{1,6}", driver, re.ASCII)
    return Gpu(
        model, (int(known[1]), int(known[2])) if known else None, int(major[0]) if major else None
    )


def why_not(gpus: Sequence[Gpu]) -> str:
    """Return the reason not to compute on a node's GPUs; empty if they are usable.

    With a reason, the node's ranks compute on the processor.
    """
    for gpu in gpus:
        if gpu.capability is not None and gpu.capability < OLDEST_CAPABILITY:
            has, needs = (
                f"{major}.{minor}" for major, minor in (gpu.capability, OLDEST_CAPABILITY)
            )
            return (
                f"{gpu.model} has compute capability {has}; PyTorch's wheels need at least {needs}"
            )
        if gpu.driver is not None and gpu.driver < OLDEST_DRIVER:
            return (
                f"the driver of {gpu.model} has version {gpu.driver}; PyTorch's wheels need at"
                f" least {OLDEST_DRIVER}"
            )
    return ""
