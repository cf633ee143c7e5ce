from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from laggard.layers_services.local.janitor import remove_stale_cgroups, remove_tree, run_name

if TYPE_CHECKING:
    from tests.users import Runner

CGROUPS = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")]

RUN = """
    import os, sys, time
    from pathlib import Path
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.local.janitor import Janitor, run_name
    folder = Path(sys.argv[1]) / run_name()
    with Janitor.start() as janitor:
        janitor.watch([folder])
        (folder / "host1").mkdir(parents=True)
        (folder / "host2").mkdir()
        members = os.open(folder / "host1" / sys.argv[2], os.O_WRONLY | os.O_CREAT) if sys.argv[2] else None
        def function():
            if members is not None:
                os.write(members, b"0")
            print(folder, janitor._pid, flush=True)
            time.sleep(float(sys.argv[3]))
            return 0
        sandbox.run_in_sandbox(function)
    print("closed", flush=True)
"""


ON_A_NODE = """
    import os, signal, sys, time
    from laggard.layers_services.local import janitor
    janitor.CALLER_PATIENCE_S = 0.2
    with janitor.Janitor.start(connection=0) as made:
        made.undo(["false"])
        made.undo(["no-such-program"])
        made.undo(["touch", sys.argv[1]])
        print("ready", flush=True)
        if sys.argv[2] == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        sys.stdin.read()
        if sys.argv[2] == "busy":
            time.sleep(600)
    print(os.path.exists(sys.argv[1]), flush=True)
"""


@pytest.mark.parametrize("how", ["ended", "killed", "stopped", "busy"])
def test_changes_of_a_node_are_undone_without_its_agent(own_runner: Runner, how: str) -> None:
    """Its output is closed too, so an SSH session ends."""
    undone = own_runner.folder / "undone"
    process = own_runner.start(ON_A_NODE, str(undone), how, stdin=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert not undone.exists()
    if how == "killed":
        process.kill()
    process.stdin.close()
    assert process.stdout.read() == ("True\n" if how == "ended" else "")
    assert process.wait(timeout=60) == (0 if how == "ended" else -signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while not undone.exists():
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def wait_until_gone(folder: Path, patience_s: float = 60.0) -> None:
    started = time.monotonic()
    while folder.exists():
        assert time.monotonic() < started + patience_s, f"left: {list(folder.iterdir())}"
        time.sleep(0.01)


def wait_for_the_janitor(pid: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(timeout=60)


def writable_cgroup() -> Path | None:
    for parent in CGROUPS:
        probe = parent / f"laggard-test-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError:
            continue
        usable = (probe / "cgroup.procs").exists()
        probe.rmdir()
        if usable:
            return parent
    return None


def test_a_run_that_ends_leaves_no_folder(own_runner: Runner) -> None:
    result = own_runner.run(RUN, str(own_runner.folder / "groups"), "", "0")
    folder = Path(result.stdout.split()[0])
    assert result.stdout.endswith("closed\n"), result.stderr
    assert folder.parent.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_run_leaves_no_folder(runner: Runner, number: int) -> None:
    process = runner.start(RUN, str(runner.folder / "groups"), "", "600")
    assert process.stdout is not None
    folder, janitor = process.stdout.readline().split()
    process.send_signal(number)
    wait_until_gone(Path(folder))
    process.communicate(timeout=60)
    wait_for_the_janitor(int(janitor))


def test_a_killed_run_leaves_no_cgroup(own_runner: Runner) -> None:
    parent = writable_cgroup()
    if parent is None:
        pytest.skip("needs a cgroup folder that may be written")
    process = own_runner.start(RUN, str(parent), "cgroup.procs", "600")
    assert process.stdout is not None
    folder, janitor = process.stdout.readline().split()
    assert (Path(folder) / "host1" / "cgroup.procs").read_text().strip()
    process.kill()
    wait_until_gone(Path(folder))
    process.communicate(timeout=60)
    wait_for_the_janitor(int(janitor))


def test_a_killed_janitor_is_made_up_for_by_the_next_run(own_runner: Runner) -> None:
    groups = own_runner.folder / "groups"
    process = own_runner.start(RUN, str(groups), "", "600")
    assert process.stdout is not None
    folder, janitor = process.stdout.readline().split()
    assert remove_stale_cgroups([groups]) == ()
    os.kill(int(janitor), signal.SIGKILL)
    process.kill()
    process.communicate(timeout=60)
    assert Path(folder).exists()
    assert remove_stale_cgroups([groups, groups / "missing"]) == (Path(folder),)
    assert not Path(folder).exists()


def test_sweeping_spares_what_is_not_a_dead_run(tmp_path: Path) -> None:
    alive = run_name()
    pid, start = alive.split("-")
    spared = [alive, "important", "12-", "a12-3", f"{pid}-{start}x"]
    spared.append(f"laggard-{alive}")
    dead = [f"{pid}-{int(start) + 1}", f"laggard-{pid}-1"]
    for name in [*spared, *dead]:
        (tmp_path / name).mkdir()
    full = tmp_path / "1-1"
    full.mkdir()
    (full / "file").write_text("keep")
    assert remove_stale_cgroups([tmp_path]) == tuple(tmp_path / name for name in dead)
    assert {path.name for path in tmp_path.iterdir()} == {*spared, "1-1"}
    assert (full / "file").read_text() == "keep"


def test_removing_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "precious")
    assert not remove_tree(tmp_path / "tree")
    assert (tmp_path / "precious").exists()
    assert remove_tree(tmp_path / "missing")


def test_the_name_of_a_process_that_is_gone() -> None:
    with pytest.raises(ProcessLookupError):
        run_name(2**22 + 1)
