"""Start-up hook of programs that `laggard trace` runs: records the steps of PyTorch's optimizers.

Python imports a module of this name before a program's own code. Programs that never import
torch's optimizers are left alone, such as the launchers of a training.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

_OPTIMIZERS = "torch.optim.optimizer"


class _RecordingLoader(Loader):
    """Loader of torch's optimizers that begins to record once they are imported."""

    def __init__(self, own: Loader) -> None:
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        # By its file name: the traced program's Python need not have Laggard.
        recording = importlib.import_module("laggard_record_steps")
        recording.record_steps(module.register_optimizer_step_post_hook)


class _OptimizerFinder(MetaPathFinder):
    """Finder of torch's optimizers, which gives them the recording loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != _OPTIMIZERS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _RecordingLoader(spec.loader)
        return spec


def _run_hidden_hook() -> None:
    """Run the start-up hook of the installation, which this module hides."""
    own = Path(__file__).resolve().parent
    others = [entry for entry in sys.path if Path(entry).resolve() != own]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


_run_hidden_hook()
sys.meta_path.insert(0, _OptimizerFinder())
