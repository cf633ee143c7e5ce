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
LOST = {
    "finalizer": """
import os, signal

class Owner:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)

Owner()
print("imported", flush=True)
""",
    "weak reference": """
import os, signal, weakref

class Owner:
    pass

owner = Owner()
reference = weakref.ref(owner, lambda _: os.kill(os.getpid(), signal.SIGINT))
del owner
print("imported", flush=True)
""",
    "generator": """
import os, signal

def wait():
    try:
        yield
    finally:
        os.kill(os.getpid(), signal.SIGINT)

waiting = wait()
next(waiting)
del waiting
print("imported", flush=True)
""",
}
PROGRAM = """
import runpy, signal, sys, time
from laggard.core.process.termination_signals import interrupt, repeat_lost_interrupts
imported = {path!r}
{handler}
try:
    {work}
    time.sleep(20)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


OF_COMMANDS = """
signal.signal(signal.SIGINT, interrupt)
handled = repeat_lost_interrupts()
handled.__enter__()
"""
OF_RUNS = """
from laggard.supervision.interrupts import interrupt_on_signals
handled = interrupt_on_signals()
handled.__enter__()
"""


HANDLERS = pytest.mark.parametrize(
    "handler",
    [
        OF_COMMANDS,
        OF_RUNS,
    ],
)


@HANDLERS
def test_an_interrupt_waits_for_the_end_of_an_import(handler: str, tmp_path: Path) -> None:
    run_module(MODULE, "import imported", handler, tmp_path)


@HANDLERS
@pytest.mark.parametrize("code", LOST.values(), ids=LOST)
def test_an_interrupt_without_a_caller_is_repeated(code: str, handler: str, tmp_path: Path) -> None:
    run_module(code, "runpy.run_path(imported)", handler, tmp_path)


def run_module(code: str, work: str, handler: str, folder: Path) -> None:
    """Run code that interrupts itself, and assert that the interrupt arrives after its end."""
    path = folder / "imported.py"
    path.write_text(code)
    program = PROGRAM.format(handler=handler, work=work, path=str(path))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.stdout.split() == ["imported", "interrupted"], done.stderr
    assert "Traceback" not in done.stderr
