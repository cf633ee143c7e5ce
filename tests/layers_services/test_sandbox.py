from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import random
import select
import signal
import subprocess
import termios
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from laggard.core.errors import DeploymentError
from laggard.core.process.termination_signals import SECOND_AFTER_S
from laggard.layers_services.local import sandbox
from tests.processes import is_alive

if TYPE_CHECKING:
    from tests.users import Runner

CALL = """
    import os, signal, sys, time
    from pathlib import Path
    from laggard.layers_services.local import sandbox
    def function():
        {body}
        return 0
    status = sandbox.run_in_sandbox(function)
    print("status", status, flush=True)
"""


def script(body: str) -> str:
    return CALL.replace("{body}", "\n        ".join(body.strip().splitlines()))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("return 0", 0),
        ("return 7", 7),
        ("return 255", 255),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit", 0),
        ("raise SystemExit('text')", 1),
        ("raise ValueError('boom')", 1),
        ("raise KeyboardInterrupt", 130),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143),
        ("os.abort()", 134),
    ],
)
def test_returns_the_status_of_the_function(own_runner: Runner, body: str, status: int) -> None:
    result = own_runner.run(script(body))
    assert f"status {status}" in result.stdout, result.stderr
    assert ("boom" in result.stderr) == ("boom" in body)


def test_caller_keeps_its_namespaces_and_can_call_again(runner: Runner) -> None:
    result = runner.run("""
        import os
        from laggard.layers_services.local import sandbox
        kinds = ("user", "pid", "pid_for_children", "mnt", "net", "uts", "ipc")
        def ids():
            return [os.readlink(f"/proc/self/ns/{kind}") for kind in kinds]
        before = ids()
        assert sandbox.run_in_sandbox(lambda: 5) == 5
        assert sandbox.run_in_sandbox(lambda: 6) == 6
        assert ids() == before
        def differ():
            now = ids()
            return sum(a != b for a, b in zip(now, before))
        print("different", sandbox.run_in_sandbox(differ))
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            print("no child left")
    """)
    expected = 6 if runner.user == "root" and os.geteuid() == 0 else 7
    assert result.stdout.split("\n")[0] == f"different {expected}", result.stderr
    assert "no child left" in result.stdout


def test_what_the_function_finds(runner: Runner) -> None:
    result = runner.run(
        script("""
import json, tempfile, pathlib
facts = {
    "pid": os.getpid(), "uid": os.getuid(), "run": sorted(os.listdir("/run")), "devices": os.listdir("/sys/class/net"),
    "home": os.access(os.environ["HOME"], os.W_OK), "tmp": os.access(tempfile.gettempdir(), os.W_OK),
    "processes": len([p for p in os.listdir("/proc") if p.isdigit()]), "shm": os.listdir("/dev/shm"),
    "lo": pathlib.Path("/sys/class/net/lo/flags").read_text().strip(),
}
print(json.dumps(facts), flush=True)
""")
    )
    facts = json.loads(result.stdout.splitlines()[0])
    assert facts["pid"] == 2
    assert facts["uid"] == 0
    assert "netns" in facts["run"]
    assert set(facts["run"]) <= {"netns", "home", "tmp"}
    assert facts["devices"] == ["lo"]
    assert facts["home"]
    assert facts["tmp"]
    assert facts["processes"] == 2
    assert facts["shm"] == []
    assert int(facts["lo"], 16) & 1


def test_descriptors_opened_before_stay_usable(own_runner: Runner) -> None:
    result = own_runner.run("""
        import os
        from laggard.layers_services.local import sandbox
        read, write = os.pipe()
        sandbox.run_in_sandbox(lambda: os.write(write, b"through") and 0)
        print(os.read(read, 100))
    """)
    assert "b'through'" in result.stdout, result.stderr


def test_buffered_output_is_written_once(own_runner: Runner) -> None:
    result = own_runner.run("""
        import sys
        from laggard.layers_services.local import sandbox
        sys.stdout.write("before ")
        sandbox.run_in_sandbox(lambda: sys.stdout.write("inside ") and 0)
        sys.stdout.write("after")
    """)
    assert result.stdout == "before inside after"


def test_refuses_a_process_with_threads() -> None:
    release = threading.Event()
    thread = threading.Thread(target=release.wait)
    thread.start()
    try:
        with pytest.raises(DeploymentError, match=r"\d threads .* copies only one thread"):
            sandbox.run_in_sandbox(lambda: 0)
    finally:
        release.set()
        thread.join()


COUNTING = """
def note(number, frame):
    with open("signals", "a") as file:
        file.write(f"{number}\\n")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, note)
print("ready", flush=True)
while not Path("signals").exists():
    time.sleep(0.02)
time.sleep(0.3)  # for a second one
print("cleaned up", flush=True)
return 9
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("whole_group", [False, True])
def test_a_signal_reaches_the_function_once(
    own_runner: Runner, number: int, whole_group: bool
) -> None:
    process = own_runner.start(script(COUNTING), start_new_session=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (os.killpg if whole_group else os.kill)(process.pid, number)
    output, errors = process.communicate(timeout=60)
    assert "cleaned up" in output, errors
    assert "status 9" in output
    assert (own_runner.folder / "signals").read_text().split() == [str(int(number))]


def test_control_c_on_a_terminal_reaches_the_function_once(own_runner: Runner) -> None:
    controller, terminal = pty.openpty()
    process = own_runner.start(
        script(COUNTING),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(terminal)
    seen, sent = b"", False
    deadline = time.monotonic() + 60
    while b"status" not in seen and time.monotonic() < deadline:
        if select.select([controller], [], [], 0.2)[0]:
            seen += os.read(controller, 4096)
        if b"ready" in seen and not sent:
            os.write(controller, b"\x03")
            sent = True
    process.wait(timeout=60)
    os.close(controller)
    assert b"cleaned up" in seen
    assert b"status 9" in seen
    assert (own_runner.folder / "signals").read_text().split() == [str(int(signal.SIGINT))]


IGNORING = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("wish", ["a second signal", "no end in time"])
def test_a_function_that_does_not_end_is_killed(own_runner: Runner, wish: str) -> None:
    in_time = ", ending_s=0.2" if wish == "no end in time" else ""
    text = script(IGNORING).replace("sandbox(function)", f"sandbox(function{in_time})")
    process = own_runner.start(text)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    started = family(process)
    process.send_signal(signal.SIGINT)
    if not in_time:
        time.sleep(2 * SECOND_AFTER_S)
        process.send_signal(signal.SIGTERM)
    output, errors = process.communicate(timeout=60)
    assert ("status 130" if in_time else "KeyboardInterrupt") in output + errors
    wait_until_gone(started)


def test_a_signal_at_any_moment_of_the_set_up_reaches_the_function(own_runner: Runner) -> None:
    """The caller's whole group gets it, as from a terminal."""
    chance = random.Random(5)
    # One long sleep would not do: Python calls the handler of a signal that arrives directly before
    # the system call only after it.
    text = script("while True:\n    time.sleep(0.02)").replace(
        "status = ", "print('go', flush=True)\n    status = "
    )
    for _ in range(20):
        process = own_runner.start(text, start_new_session=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        time.sleep(chance.uniform(0.0, 0.05))
        os.killpg(process.pid, signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        # Before its own signals are blocked, the caller is interrupted itself.
        assert "status 130" in output or process.returncode in (130, -signal.SIGINT), errors


WAITING = """
while not Path("go").exists():
    time.sleep(0.02)
"""


def test_stopping_and_continuing(own_runner: Runner) -> None:
    process = own_runner.start(
        script(f"print('ready', flush=True)\n{WAITING}return 6"), start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTSTP)
    stopped, deadline = family(process), time.monotonic() + 60
    while {each.status() for each in stopped} != {psutil.STATUS_STOPPED}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (own_runner.folder / "go").touch()
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert "status 6" in output


FAMILY = """
for number in range(3):
    if os.fork() == 0:
        if number == 1:
            os.setsid()
        if number == 2:
            from laggard.core import linux
            linux.unshare(linux.CLONE_NEWNET | linux.CLONE_NEWNS)
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("up", flush=True)
        time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""
FAMILY_SIZE = 1 + 1 + 1 + 1 + 6


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    caller = psutil.Process(process.pid)
    return [caller, *caller.children(recursive=True)]


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    return [each for each in processes if is_alive(each)]


def wait_until_gone(processes: list[psutil.Process]) -> None:
    started = time.monotonic()
    while alive(processes):
        assert time.monotonic() < started + 60, f"left: {alive(processes)}"
        time.sleep(0.005)


NAMESPACES = ("net", "mnt", "pid", "uts", "ipc")


def namespaces_of(process: psutil.Process) -> set[str]:
    found = set()
    for kind in NAMESPACES:
        with contextlib.suppress(OSError):
            found.add(str(Path(f"/proc/{process.pid}/ns/{kind}").readlink()))
    return found


def inhabitants(spaces: set[str]) -> list[psutil.Process]:
    """Processes in these namespaces, whoever started them; true while there is one (later the
    kernel gives the numbers to others)."""
    return [process for process in psutil.process_iter() if namespaces_of(process) & spaces]


def test_killing_any_process_leaves_nothing(runner: Runner) -> None:
    chance = random.Random(2)
    mounts = Path("/proc/self/mountinfo").read_text()
    for _ in range(8):
        process = runner.start(script(FAMILY))
        assert process.stdout is not None
        for _ in range(7):
            assert process.stdout.readline() == "up\n"
        processes = family(process)
        assert len(processes) == FAMILY_SIZE
        spaces = set().union(*map(namespaces_of, processes[2:])) - namespaces_of(psutil.Process())
        assert len(spaces) >= 7
        # Killing a leaf takes only itself; the caller, launcher, init and the function take
        # everything.
        victim = chance.choice(processes[:4])
        inside = inhabitants(spaces)
        assert set(inside) == set(processes[2:])
        victim.kill()
        wait_until_gone(processes[1:])
        process.communicate(timeout=60)
        assert not alive(inside)
    assert Path("/proc/self/mountinfo").read_text() == mounts


@pytest.mark.long
def test_killing_while_it_is_set_up_leaves_nothing(runner: Runner) -> None:
    chance = random.Random(3)
    for _ in range(15):
        process = runner.start(script("time.sleep(600)"))
        watched: set[psutil.Process] = set()
        while len(watched) < 2:
            watched |= set(family(process))
        time.sleep(chance.uniform(0.0, 0.01))
        watched |= set(family(process))
        with contextlib.suppress(psutil.NoSuchProcess):
            chance.choice(sorted(watched, key=lambda each: each.pid)).kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            watched |= set(family(process))
        wait_until_gone(sorted(watched, key=lambda each: each.pid))
        process.communicate(timeout=60)


def test_a_killed_child_is_only_its_own_end(own_runner: Runner) -> None:
    result = own_runner.run(
        script("""
child = os.fork()
if child == 0:
    time.sleep(600)
os.kill(child, signal.SIGKILL)
_, status = os.waitpid(child, 0)
return os.WTERMSIG(status)
""")
    )
    assert "status 9" in result.stdout


def test_orphans_end_with_the_function(own_runner: Runner) -> None:
    process = own_runner.start(
        script(
            """
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            print("up", flush=True)
            time.sleep(600)
        os._exit(0)
"""
            + WAITING
            + "return 4\n"
        )
    )
    assert process.stdout is not None
    for _ in range(5):
        process.stdout.readline()
    processes = family(process)
    (own_runner.folder / "go").touch()
    output, _ = process.communicate(timeout=60)
    assert "status 4" in output
    assert not alive(processes[1:])


def test_a_refused_step_names_the_grant(own_runner: Runner) -> None:
    result = own_runner.run("""
        import errno
        from laggard.core.errors import PrerequisiteError
        from laggard.layers_services.local import (sandbox); from laggard.core import (linux)
        def refuse(*arguments):
            raise OSError(errno.EPERM, "no")
        linux.mount = refuse
        try:
            sandbox.run_in_sandbox(lambda: 0)
        except PrerequisiteError as error:
            print(error.missing, "|", error.grant)
    """)
    assert "the step `private mounts`" in result.stdout, result.stderr
    assert "Operation not permitted" in result.stdout
    assert " | " in result.stdout
