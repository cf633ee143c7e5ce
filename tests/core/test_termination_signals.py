"""An interrupt waits for the end of an import, which would convert or lose its exception."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
import os, signal, time

class Descriptor:
    def __set_name__(self, owner, name):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)

class Owner:
    field = Descriptor()

print("imported", flush=True)
"""
PROGRAM = """
import signal, sys, time
from laggard.core.termination_signals import interrupt
{handler}
try:
    import imported
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


OF_RUNS = """
from laggard.supervision.interrupts import interrupt_on_signals
handled = interrupt_on_signals()
handled.__enter__()
"""


@pytest.mark.parametrize(
    "handler",
    [
        "signal.signal(signal.SIGINT, interrupt)",
        OF_RUNS,
    ],
)
def test_an_interrupt_waits_for_the_end_of_an_import(handler: str, tmp_path: Path) -> None:
    (tmp_path / "imported.py").write_text(MODULE)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(handler=handler)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.stdout.split() == ["imported", "interrupted"], done.stderr
    assert "Traceback" not in done.stderr
