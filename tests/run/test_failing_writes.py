"""The disk fails or is full at any moment of a run: one message, and all that was written is kept."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from laggard.run_folder.store import list_runs
from tests.command_line import SMALL, Laggard, needs_tun
from tests.faults import Fault, count_finished_steps, holds
from tests.run.failing_writes import (
    FailingRun,
    build_library,
    needs_compiler,
    run_with_failing_write,
)

pytestmark = needs_tun


def with_steps(steps: int) -> str:
    return SMALL["workload.yaml"].replace("steps: 60", f"steps: {steps}")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("library"))


@pytest.mark.long
@needs_compiler
@holds(Fault.WRITE_FAILS)
def test_a_failed_write_ends_a_run_in_one_message(
    library: Path, laggard: Laggard, make_scenario: Callable[..., Path]
) -> None:
    """`benchmarks/faults.py` fails the writes of a run one after another."""
    scenario = make_scenario(workload=with_steps(15))
    whole = run_with_failing_write(library, laggard, scenario, 0, errno.EIO)
    assert whole.status in (0, 3), whole.errors
    # One place in each of the start, the training and the analysis.
    for part, number in ((0.05, errno.EMFILE), (0.5, errno.ENOSPC), (0.95, errno.EIO)):
        at = int(whole.changes * part)
        ended = run_with_failing_write(library, laggard, scenario, at, number)
        assert_nothing_is_lost(laggard, ended, f"change {at} of {whole.changes}")


def assert_nothing_is_lost(laggard: Laggard, ended: FailingRun, what: str) -> None:
    said = f"{what}: {ended.status}\n{ended.output}\n{ended.errors}"
    # Some writes, such as those of a log, may fail without harm.
    assert ended.status in (0, 1, 2, 3), said
    assert "Traceback" not in ended.output + ended.errors, said
    for record, folder in list_runs(laggard.runs)[-1:]:
        assert record.status != "running", said
        if ended.status == 1:
            assert record.status == "failed", said
        assert '"running"' not in (folder / "run.json").read_text(), said


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small disk")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=True)
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.long
@holds(Fault.DISK_FULL)
@pytest.mark.parametrize("stage", ["start", "training"])
def test_a_full_disk_ends_a_run_in_one_message(
    stage: str, small_disk: Path, make_scenario: Callable[..., Path]
) -> None:
    laggard = Laggard(small_disk / "runs")
    scenario = make_scenario(workload=with_steps(100_000))
    run = laggard.start("run", str(scenario), "--fidelity", "record")
    awaited = "fidelity.json" if stage == "start" else "workers/progress.jsonl"
    with filler(small_disk, lambda: any(laggard.runs.glob(f"*/*/{awaited}"))):
        output, errors = run.communicate(timeout=480)
    assert run.returncode == 1, errors
    assert "Traceback" not in output + errors
    assert "No space left on device" in output + errors or "are free" in output + errors
    ((record, folder),) = list_runs(laggard.runs)
    assert record.status == "failed"
    if stage == "training":
        finished = count_finished_steps(folder / "workers/progress.jsonl")
        (small_disk / "filler").unlink()
        subprocess.run(laggard.command("report", str(folder)), check=True)
        assert len(pd.read_parquet(folder / "steps.parquet").query("rank == 0")) >= finished


@contextlib.contextmanager
def filler(disk: Path, begin: Callable[[], bool]) -> Iterator[None]:
    """Fill a disk, again and again, once something has happened."""
    ended = threading.Event()

    def fill() -> None:
        while not begin() and not ended.is_set():
            time.sleep(0.02)
        with (disk / "filler").open("ab", buffering=0) as file:
            while not ended.is_set():
                with contextlib.suppress(OSError):
                    file.write(bytes(4096))
                    continue
                time.sleep(0.01)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
