"""The GPUs of a node, and whether workers can compute on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

OLDEST_CAPABILITY = (7, 5)
OLDEST_DRIVER = 580
"""What CUDA 13 supports, with which PyTorch's own wheels are built
(https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/)."""


@dataclass(frozen=True)
class Gpu:
    """One GPU of a node.

    Attributes:
        model: as the NVIDIA driver names it.
        capability: compute capability; None where the driver does not tell.
        driver: major version of the driver; None where it does not tell.
    """

    model: str
    capability: tuple[int, int] | None = None
    driver: int | None = None


def parse_gpu(line: str) -> Gpu:
    """From a line of nvidia-smi: `name, compute_cap, driver_version`, of which only the first is
    sure to be there.
    """
    model, *rest = (part.strip() for part in line.split(","))
    capability, driver = ([*rest, "", ""])[:2]
    known = re.fullmatch(r"(\d+)\.(\d+)", capability)
    major = re.match(r"\d+", driver)
    return Gpu(
        model, (int(known[1]), int(known[2])) if known else None, int(major[0]) if major else None
    )


def why_not(gpus: Sequence[Gpu]) -> str:
    """Why a node's GPUs are left alone and its ranks compute on the processor; empty where there is
    no reason.
    """
    for gpu in gpus:
        if gpu.capability is not None and gpu.capability < OLDEST_CAPABILITY:
            has, needs = (
                f"{major}.{minor}" for major, minor in (gpu.capability, OLDEST_CAPABILITY)
            )
            return f"{gpu.model} has compute capability {has}, and PyTorch's wheels need {needs}"
        if gpu.driver is not None and gpu.driver < OLDEST_DRIVER:
            return (
                f"the driver of {gpu.model} is of version {gpu.driver}, and PyTorch's wheels need"
                f" {OLDEST_DRIVER}"
            )
    return ""
