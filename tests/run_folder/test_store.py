"""Run folders under real processes: killed, racing, and in places where they cannot be."""

from __future__ import annotations

import contextlib
import json
import logging
import multiprocessing
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import OutputError, RunFolderError
from laggard.core.run_schema import RunRecord
from laggard.run_folder import store
from laggard.run_folder.store import (
    RunFolder,
    find_run,
    list_runs,
    load_record,
    new_run_id,
    to_folder_name,
)


def _draft(scenario: str = "quickstart") -> RunRecord:
    return RunRecord(
        id="", scenario=scenario, status="running", command=("laggard", "run"), seed=1, versions={"laggard": "0"}, git=None,
        testbed="local", started="2026-11-21T05:00:00+00:00",
    )  # fmt: skip


def _forked(work: Callable[[], None]) -> int:
    """Fork a child that does `work` and ends with status 0, or 1 if it raised."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid


def _wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end, "waited 30 s in vain"
        time.sleep(0.01)


def test_a_run_from_beginning_to_end(tmp_path: Path) -> None:
    folder, record = RunFolder.create(tmp_path / "runs", _draft())
    with folder:
        assert folder.path == tmp_path / "runs" / "quickstart" / record.id
        assert record.status == "running"
        assert load_record(folder.path) == record
        folder.write_files(
            {"workload.yaml": b"seed: 1\n", "traces/lte.csv": b"seconds\n"}, folder.scenario
        )
        assert (folder.scenario / "traces/lte.csv").read_bytes() == b"seconds\n"
        done = record.model_copy(update={"status": "done"})
        folder.write_record(done)
    assert load_record(folder.path) == done
    assert load_record(folder.path / "run.json") == done
    assert list_runs(tmp_path / "runs") == [(done, folder.path)]
    assert (tmp_path / "runs/quickstart/latest").resolve() == folder.path.resolve()
    assert {path.name for path in folder.path.iterdir()} == {"run.json", "lock", "scenario"}


def test_a_file_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderError, match="not a folder"):
        list_runs(tmp_path / "file")
    assert list_runs(tmp_path / "missing") == []


def test_letting_go_without_a_last_record_reads_as_interrupted(tmp_path: Path) -> None:
    folder, _ = RunFolder.create(tmp_path, _draft())
    folder.close()
    assert load_record(folder.path).status == "interrupted"
    assert json.loads((folder.path / "run.json").read_text())["status"] == "running"


def test_a_killed_process_reads_as_interrupted(tmp_path: Path) -> None:
    def work() -> None:
        RunFolder.create(tmp_path, _draft())
        time.sleep(60)

    pid = _forked(work)
    _wait_until(lambda: bool(list_runs(tmp_path)))
    assert [record.status for record, _ in list_runs(tmp_path)] == ["running"]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ((record, _),) = list_runs(tmp_path)
    assert record.status == "interrupted"
    assert record.error


def test_a_run_lives_as_long_as_any_of_its_processes(tmp_path: Path) -> None:
    folder, _ = RunFolder.create(tmp_path, _draft())
    pid = _forked(lambda: time.sleep(60))
    folder.close()
    assert load_record(folder.path).status == "running"
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert load_record(folder.path).status == "interrupted"


def test_a_finished_run_never_reads_as_interrupted(tmp_path: Path) -> None:
    """The reader may look between the last record and the release of the lock."""
    seen: set[str] = set()
    for _ in range(30):
        folder, record = RunFolder.create(tmp_path, _draft())
        stop = threading.Event()

        def watch(path: Path = folder.path, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                seen.add(load_record(path).status)

        watcher = threading.Thread(target=watch)
        watcher.start()
        folder.write_record(record.model_copy(update={"status": "done"}))
        folder.close()
        stop.set()
        watcher.join()
    assert "interrupted" not in seen


def _create_several(root: str, count: int) -> list[str]:
    return [RunFolder.create(Path(root), _draft())[1].id for _ in range(count)]


def test_runs_that_start_at_the_same_moment_never_collide(tmp_path: Path) -> None:
    with multiprocessing.get_context("fork").Pool(8) as pool:
        made = [
            run for runs in pool.starmap(_create_several, [(str(tmp_path), 10)] * 8) for run in runs
        ]
    assert len(set(made)) == 80
    assert sorted(
        path.name for path in (tmp_path / "quickstart").iterdir() if path.name != "latest"
    ) == sorted(made)
    assert (tmp_path / "quickstart/latest").readlink().name == max(made)


def test_an_id_that_is_taken_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(["one", "one", "one", "two"])
    monkeypatch.setattr(store, "new_run_id", lambda: next(ids))
    assert RunFolder.create(tmp_path, _draft())[1].id == "one"
    assert RunFolder.create(tmp_path, _draft())[1].id == "two"


@given(
    st.lists(
        st.datetimes(min_value=datetime(2020, 1, 1), max_value=datetime(2090, 1, 1)),  # noqa: DTZ001
        min_size=2,
        max_size=5,
    )
)
def test_ids_sort_by_time(moments: list[datetime]) -> None:
    spread = sorted(moment.replace(microsecond=0, tzinfo=UTC) for moment in moments)
    ids = [new_run_id(moment + timedelta(milliseconds=10 * i)) for i, moment in enumerate(spread)]
    assert ids == sorted(ids)


@given(st.text())
def test_a_scenario_name_is_a_plain_folder_name(name: str) -> None:
    plain = to_folder_name(name)
    assert plain
    assert "/" not in plain
    assert plain not in (".", "..")
    assert not plain.startswith((".", "-"))
    assert plain.isascii()
    assert len(plain) <= 100


def test_the_record_is_never_half_written(tmp_path: Path) -> None:
    """Kill a process that rewrites its record without pause, many times; it must read back whole
    each time."""
    for round_ in range(15):
        folder, record = RunFolder.create(tmp_path, _draft())

        def work(folder: RunFolder = folder, record: RunRecord = record) -> None:
            for i in range(10**9):
                folder.write_record(record.model_copy(update={"error": "x" * (1 + i % 100_000)}))

        pid = _forked(work)
        time.sleep(0.01 + 0.002 * round_)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        folder.close()
        assert load_record(folder.path).status == "interrupted"


def test_a_maker_killed_early_leaves_no_run_and_is_swept(tmp_path: Path) -> None:
    left = tmp_path / "quickstart" / ".new-0123"
    left.mkdir(parents=True)
    (left / "run.json").write_text("{")
    assert list_runs(tmp_path) == []
    RunFolder.create(tmp_path, _draft())[0].close()
    assert left.exists()  # it may still be at work
    os.utime(left, (0, 0))
    RunFolder.create(tmp_path, _draft())[0].close()
    assert not left.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_the_last_record_fits_on_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=True)
    try:
        folder, record = RunFolder.create(disk, _draft())
        with folder:
            _fill(disk)
            for error in ("x", "y" * 20_000, "y" * 20_001, "z", *"abcdef"):
                folder.write_record(record.model_copy(update={"status": "failed", "error": error}))
                assert load_record(folder.path).error == error
                _fill(disk)
            with pytest.raises(OutputError, match=r"run\.json: No space left on device — free"):
                folder.write_record(record.model_copy(update={"error": "z" * 200_000}))
        content = (folder.path / "run.json").read_text()
        assert content.endswith("}\n")
        assert sorted(path.name for path in folder.path.iterdir()) == ["lock", "run.json"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def _fill(disk: Path) -> None:
    """Write until nothing fits any more."""
    with (disk / "filler").open("ab", buffering=0) as filler:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):
                while filler.write(bytes(size)):
                    pass


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_folder_of_somebody_else_is_a_clear_error() -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        said = root / "said"
        said.touch()
        said.chmod(0o666)

        def work() -> None:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            try:
                RunFolder.create(root, _draft())
            except RunFolderError as error:
                said.write_text(str(error))

        assert os.waitpid(_forked(work), 0)[1] == 0
        assert "Permission denied — choose another folder with --runs" in said.read_text()


@pytest.mark.parametrize("where", ["file/runs", "/proc/runs"])
def test_a_place_that_cannot_hold_folders_is_a_clear_error(where: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="choose another folder"):
        RunFolder.create(tmp_path / where, _draft())


def test_a_folder_named_latest_is_a_clear_error_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "quickstart/latest").mkdir(parents=True)
    with pytest.raises(RunFolderError, match="latest"):
        RunFolder.create(tmp_path, _draft())
    assert [path.name for path in (tmp_path / "quickstart").iterdir()] == ["latest"]
    assert list_runs(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("", "not a run record"),
        ("{", "not a run record"),
        ("[]", "not a run record"),
        ('{"schema_version": 99}', "newer Laggard"),
        ('{"schema_version": 1, "status": "asleep"}', "not a run record"),
        ("\x00" * 100, "not a run record"),
    ],
)
def test_damaged_records_are_named_and_left_out(
    text: str, rule: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good, _ = RunFolder.create(tmp_path, _draft())
    bad, _ = RunFolder.create(tmp_path, _draft())
    (bad.path / "run.json").write_text(text)
    with pytest.raises(RunFolderError, match=rule):
        load_record(bad.path)
    with caplog.at_level(logging.WARNING):
        assert [folder for _, folder in list_runs(tmp_path)] == [good.path]
    assert str(bad.path) in caplog.text
    good.close()
    bad.close()


def test_a_missing_folder_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="laggard runs"):
        load_record(tmp_path / "none")
    assert list_runs(tmp_path / "none") == []


def test_copies_without_their_lock_still_read(tmp_path: Path) -> None:
    folder, record = RunFolder.create(tmp_path, _draft())
    folder.write_record(record.model_copy(update={"status": "done"}))
    folder.close()
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder.path, copy)
    (copy / "lock").unlink()
    assert load_record(copy).status == "done"


def test_runs_are_found_by_path_id_prefix_and_scenario(tmp_path: Path) -> None:
    first, record = RunFolder.create(tmp_path, _draft())
    time.sleep(0.005)
    second, _ = RunFolder.create(tmp_path, _draft())
    assert find_run(str(first.path), tmp_path) == first.path.resolve()
    assert find_run(record.id, tmp_path) == first.path
    assert find_run("quickstart", tmp_path) == second.path.resolve()
    with pytest.raises(RunFolderError, match="2 runs begin with this id"):
        find_run("2", tmp_path)
    with pytest.raises(RunFolderError, match="not a run folder"):
        find_run("nothing", tmp_path)
    with pytest.raises(RunFolderError, match=r"has no run\.json"):
        find_run(str(tmp_path), tmp_path)
    first.close()
    second.close()
