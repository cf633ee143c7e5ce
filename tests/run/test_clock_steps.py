"""The wall clock of a machine is set while a run trains: only the record says so."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.command_line import Laggard, needs_tun
from tests.faults import Fault, holds
from tests.run.test_faults import PATIENCE_S, wait_for_more_steps, wait_for_training

pytestmark = needs_tun

SOURCE = Path(__file__).with_name("stepping_clock.c")
TRAINING_S = 10.0
STEPS_S = (3600.0, -86_400.0)
"""What the wall clock is ahead of the true one, one after the other."""


class SteppedClock:
    """A wall clock that can be set, for the programs that are started with its environment."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock"
        self._file.write_bytes(bytes(8))
        self._library = folder / "stepping_clock.so"
        command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror"]
        subprocess.run([*command, "-o", str(self._library), str(SOURCE), "-ldl"], check=True)

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self._library), "STEPPED_CLOCK": str(self._file)}

    def set_ahead(self, seconds: float) -> None:
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", round(seconds * 1e9)))


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SteppedClock:
    """A clock that everything has which the test starts."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    made = SteppedClock(tmp_path)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def test_programs_see_the_step(clock: SteppedClock) -> None:
    clock.set_ahead(STEPS_S[0])
    shown = subprocess.run(
        [shutil.which("python3") or "python3", "-c", "import time; print(time.time())"],
        env={**os.environ, **clock.environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(shown.stdout) - time.time() == pytest.approx(STEPS_S[0], abs=600.0)


@pytest.mark.long
@holds(Fault.CLOCK_STEPPED)
def test_a_clock_that_is_set_changes_no_duration_and_no_deadline(
    clock: SteppedClock, laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    began_s = time.monotonic()
    stop = f"workload.stop={{steps: 100000, time: {TRAINING_S}s}}"
    run = laggard.start(
        "run", str(make_scenario()), "--json", "--fidelity", "record", "--set", stop
    )
    try:
        wait_for_training(laggard.runs, run)
        for ahead_s in STEPS_S:
            clock.set_ahead(ahead_s)
            wait_for_more_steps(laggard.runs)
        out, errors = run.communicate(timeout=PATIENCE_S)
    finally:
        run.send_signal(signal.SIGKILL)
        run.communicate()
    took_s = time.monotonic() - began_s
    answer = json.loads(out)
    folder = Path(answer["folder"])
    assert answer["outcome"]["stopped_by"] == "time", errors
    assert TRAINING_S <= answer["outcome"]["makespan_s"] <= took_s
    record = json.loads((folder / "run.json").read_text())
    assert all(0 <= stage["seconds"] <= took_s for stage in record["stages"])
    assert 0 < record["first_step_s"] < took_s
    spans = pd.read_parquet(folder / "spans.parquet")
    assert spans.start_ns.between(-took_s * 1e9, took_s * 1e9).all()
    assert spans.dur_ns.between(0, took_s * 1e9).all()
    steps = pd.read_parquet(folder / "steps.parquet")
    assert (steps.end_ns - steps.start_ns).between(0, took_s * 1e9).all()
    violations = json.loads((folder / "fidelity_violations.json").read_text())
    sizes_s = {round(each["size"]) for each in violations if each["kind"] == "clock stepped"}
    forth_s, back_s = STEPS_S
    # Both steps may be between two samples.
    assert sizes_s
    assert sizes_s <= {forth_s, back_s - forth_s, back_s}
    assert "the wall clock of the machine jumped" in record["error"]
    assert (folder / "report.html").exists()
