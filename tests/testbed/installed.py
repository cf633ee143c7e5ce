"""The workers' environment as nodes have it in their system's image.

Installing it takes 20 s with the compilation by its first imports. Tests that are about what comes
afterwards share one; in `tests/remote/test_run_ssh.py` a node installs its own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from laggard.layers_services.environment.install_on_node import ANSWER_MARK
from laggard.layers_services.environment.prepare import STORE, install_command
from laggard.layers_services.environment.wheels import WheelSet

_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where nodes have interpreters: they do not see the controller's home and repository."""
_IMPORTED = "laggard.remote.agent.main, laggard.workloads.worker"


def install_once(wheels: WheelSet) -> Path | None:
    """Return the folder of an environment, which the first caller of a test session installs.

    It is None if nodes have no such interpreter: on those, a run installs one for theirs.
    """
    version = ".".join(map(str, wheels.platform.python))
    python = shutil.which(f"python{version}", path=_PATH)
    if python is None:
        return None
    base = Path(tempfile.gettempdir()) / "image"
    base.mkdir(mode=0o700, exist_ok=True)
    with (base / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (base / wheels.hash).exists():
            _install(python, wheels, base)
    return base / wheels.hash


def _install(python: str, wheels: WheelSet, base: Path) -> None:
    store = base / STORE
    store.mkdir(parents=True, exist_ok=True)
    for wheel in wheels.files:
        (store / wheel.stored_name).symlink_to(wheel.path)
    done = subprocess.run(
        ["sh", "-c", install_command(python, wheels, (str(base),), str(base))],
        check=True,
        capture_output=True,
        text=True,
    )
    assert ANSWER_MARK in done.stdout
    assert '"built"' in done.stdout, done.stdout
    unset = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    compiling = [str(base / wheels.hash / "bin/python"), "-c", f"import {_IMPORTED}"]
    subprocess.run(compiling, check=True, env=unset, cwd=base)
