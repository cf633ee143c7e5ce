"""A second signal ends a remote run at once, and names what the run still holds."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from laggard.core.process.termination_signals import SECOND_AFTER_S
from laggard.run_folder.store import list_runs
from tests.faults import Fault, holds

# The cleanup of the first signal never ends here.
SCRIPT = """
import sys, time
from pathlib import Path
from laggard.core.run_schema import ReservedJob, RunRecord
from laggard.remote.run import _end_at_once
from laggard.run_folder.display import SilentDisplay
from laggard.run_folder.journal import Journal
from laggard.run_folder.store import RunFolder
from laggard.supervision.interrupts import interrupt_on_signals

def wait():
    # A signal directly before one long sleep would be handled only after it.
    while True:
        time.sleep(0.02)


jobs = (
    ReservedJob(testbed="g5k", site="rennes", job_id=7, name="x", nodes=2, released=False),
    ReservedJob(testbed="g5k", site="nancy", job_id=8, name="x", nodes=1, released=True),
)
draft = RunRecord(
    id="", scenario="held", status="running", command=("laggard", "run"), seed=1, versions={},
    git=None, testbed="g5k", started="2026-11-21T05:00:00+00:00", jobs=jobs,
)
folder, record = RunFolder.create(Path(sys.argv[1]), draft)
with folder, interrupt_on_signals(lambda: _end_at_once([Journal(record, folder, SilentDisplay())])):
    try:
        print("running", flush=True)
        wait()
    except KeyboardInterrupt:
        print("releasing", flush=True)
        wait()
"""


@holds(Fault.SECOND_SIGNAL)
def test_a_second_signal_names_what_is_held(tmp_path: Path) -> None:
    run = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    assert run.stdout.readline() == "running\n"
    run.send_signal(signal.SIGTERM)
    assert run.stdout.readline() == "releasing\n"
    time.sleep(2 * SECOND_AFTER_S)
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    ((record, _),) = list_runs(tmp_path)
    assert run.returncode == 130, errors
    assert "still holds rennes:7 — `laggard destroy" in errors
    assert "nancy" not in errors
    assert record.status == "interrupted"
    assert record.error is not None
    assert "rennes:7" in record.error
