"""Profile of the steps of a program, which runs inside it.

A step ends when the first optimizer that made a step has made one. Then the next step begins.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.profiler import profile

FOLDER_VARIABLE = "LAGGARD_TRACE_FOLDER"
SKIP_VARIABLE = "LAGGARD_TRACE_SKIP"
STEPS_VARIABLE = "LAGGARD_TRACE_STEPS"

StepHook = Callable[["torch.optim.Optimizer", tuple[object, ...], dict[str, object]], None]


def record_steps(register: Callable[[StepHook], object]) -> None:
    """Record the steps of this process as the environment says.

    Args:
        register: function of torch that registers a hook for the end of every optimizer's step.
    """
    register(_StepProfile().end_step)


class _StepProfile:
    """Profile of one process, written when its steps are over, or when the process ends."""

    def __init__(self) -> None:
        self._folder = Path(os.environ[FOLDER_VARIABLE])
        self._skip, self._count = (
            int(os.environ[name]) for name in (SKIP_VARIABLE, STEPS_VARIABLE)
        )
        self._optimizer: torch.optim.Optimizer | None = None
        self._profile: profile | None = None
        self._steps, self._rank = 0, 0

    def end_step(
        self,
        optimizer: torch.optim.Optimizer,
        _arguments: tuple[object, ...],
        _options: dict[str, object],
    ) -> None:
        """Count a step of the first optimizer; begin, continue or end the profile."""
        if self._optimizer is None:
            self._optimizer = optimizer
        if optimizer is not self._optimizer:
            return
        self._steps += 1
        if self._profile is not None:
            self._profile.step()
        elif self._steps == max(1, self._skip):
            self._begin()

    def _begin(self) -> None:
        from torch import distributed, profiler

        has_group = distributed.is_available() and distributed.is_initialized()
        self._rank = distributed.get_rank() if has_group else int(os.environ.get("RANK", "0"))
        self._profile = profiler.profile(
            # The profiler itself is slow in its first step, which therefore warms it up.
            schedule=profiler.schedule(wait=0, warmup=1, active=self._count, repeat=1),
            on_trace_ready=self._write,
            record_shapes=True,
        )
        self._profile.start()
        atexit.register(self._finish)

    def _finish(self) -> None:
        """Write the profile of a program that ends before its last traced step."""
        if self._profile is not None:
            self._profile.stop()

    def _write(self, ended: profile) -> None:
        # A reader must never see half of a file.
        path = self._folder / f"rank{self._rank}.json.gz"
        partial = self._folder / f".rank{self._rank}.json.gz"
        ended.export_chrome_trace(str(partial))
        partial.replace(path)
        self._profile = None
