"""The supervisor, on real processes: who leaves is no failure, who joins is looked after, and what
is left of the gone accuses nobody."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.users import Runner

WORK = """
import time
from pathlib import Path
from laggard.core.span_schema import Phase
from laggard.workloads.tracing.heartbeat import Heartbeat
def stand(argument):
    rank, phase, step = argument.split()
    with Heartbeat(Path("workers/heartbeat"), int(rank), 2) as heart:
        heart.beat(int(step), Phase(phase).code, time.monotonic_ns())
        Path(f"stands-{rank}-{step}").touch()
        time.sleep(600)
def fail(argument):
    raise ValueError(argument)
"""

HEAD = """
    import time
    from pathlib import Path
    from laggard.core.errors import WorkerError
    from laggard.run.supervisor import Supervisor, SupervisedProcess
    from laggard.layers_services.local.launch import ForkServer, ProcessSpec
    from laggard.workloads.output.worker_output import WorkerOutputDir
    output_dir = WorkerOutputDir(Path("workers"))
    output_dir.folder.mkdir()
    def start(rank, does, argument, life=0, late=False, dispensable=False):
        log = Path(f"{rank}.{life}.log")
        spec = ProcessSpec(f"rank-{rank}", "edge", f"work:{does}", argument, {}, log)
        joined = output_dir.ready(rank, life) if late else None
        process = SupervisedProcess(f"rank {rank}", rank, "edge", server.spawn(spec), log, in_host=True, joined_file=joined, dispensable=dispensable)
        supervisor.add_process(process)
    def stand(rank, phase, step, **more):
        start(rank, "stand", f"{rank} {phase} {step}", **more)
        while not Path(f"stands-{rank}-{step}").exists():
            time.sleep(0.01)
    def fault(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            try:
                supervisor.check(0.02)
            except WorkerError as error:
                return str(error).splitlines()[0]
        return "none"
    with ForkServer.start(["work"]) as server:
        server.wait_ready(120)
        supervisor = Supervisor(server, output_dir, 2, dilation=0.01, tolerates_loss=True)
        output_dir.zero.touch()
"""


def run(runner: Runner, body: str) -> list[str]:
    (runner.folder / "work.py").write_text(WORK)
    result = runner.run(
        textwrap.dedent(HEAD) + textwrap.indent(textwrap.dedent(body), "    "), timeout_s=240
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_who_leaves_neither_fails_nor_hangs(own_runner: Runner) -> None:
    """Of the two that stand still, one is gone: what it did last was to compute, and yet it is the
    other that hangs."""
    lines = run(
        own_runner,
        """
        stand(0, "comm", 5)
        stand(1, "forward", 3)
        print(supervisor.kill_rank(1), fault(0.5), supervisor.kill_rank(1), supervisor.lost)
        print(fault(60))
        """,
    )
    assert lines[0] == "True none False []"
    assert "rank 0 on edge: hangs: in phase comm of step 5" in lines[1]


def test_who_joins_is_watched(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        stand(0, "comm", 5)
        stand(1, "comm", 3)
        supervisor.kill_rank(1)
        fault(0.2)
        stand(1, "forward", 9, life=1, late=True)
        print(fault(60))
        """,
    )
    assert "rank 1 on edge: hangs: in phase forward of step 9" in lines[0]


def test_who_cannot_join_is_told_of_unless_training_is_over(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        start(1, "fail", "boom", late=True)
        print(fault(60))
        output_dir.done.touch()
        start(1, "fail", "boom", life=1, late=True)
        print(fault(1.0))
        output_dir.ready(1, 2).touch()
        start(1, "fail", "boom", life=2, late=True)
        print(fault(60))
        """,
    )
    assert "rank 1 on edge: died (exit status 1)" in lines[0]
    assert lines[1] == "none"
    assert "rank 1 on edge: died (exit status 1)" in lines[2]


def test_training_goes_on_without_a_dispensable_process(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        start(-1, "fail", "boom", dispensable=True)
        until = time.monotonic() + 60
        while not supervisor.lost and time.monotonic() < until:
            supervisor.check(0.02)
        print([process.rank for process in supervisor.lost])
        start(-1, "fail", "boom", life=1)
        print(fault(60))
        """,
    )
    assert lines[0] == "[-1]"
    assert "edge: rank -1 died (exit status 1)" in lines[1]
