from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from laggard.layers_services.local.launch import ProcessSpec

if TYPE_CHECKING:
    from tests.users import Runner

WORK = """
import os, pathlib, signal, sys, time
MARK = []
def hello(argument):
    print("hello", argument, os.environ.get("COLOUR"), sorted(os.sched_getaffinity(0)), os.getsid(0) == os.getpid())
def fail(argument):
    raise ValueError(argument)
def leave(argument):
    raise SystemExit(int(argument))
def sleep(argument):
    print("asleep", flush=True)
    time.sleep(float(argument))
def preloaded(argument):
    print(MARK)
def comm(argument):
    print(pathlib.Path("/proc/self/comm").read_text().strip(), sys.stdin.read() == "")
"""

HEAD = """
    import os, signal, sys, time
    from pathlib import Path
    from laggard.layers_services.local.launch import ForkServer, ProcessSpec
    def spec(function, argument="", name="worker", **more):
        fields = {"environment": {}, "log": Path(f"{name}.log")} | more
        return ProcessSpec(name=name, host="edge.a.1.1", entry=f"work:{function}", argument=argument, **fields)
    def wait(server, count=1):
        ended, deadline = [], time.monotonic() + 200
        while len(ended) < count and time.monotonic() < deadline:
            ended += server.exits(1.0)
        return ended
"""


def run(runner: Runner, body: str) -> list[str]:
    (runner.folder / "work.py").write_text(WORK)
    result = runner.run(textwrap.dedent(HEAD) + textwrap.dedent(body))
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_starts_processes_with_what_their_spec_says(own_runner: Runner) -> None:
    cpu = min(os.sched_getaffinity(0))
    lines = run(
        own_runner,
        f"""
        with ForkServer.start(["work"]) as server:
            assert server.wait_ready(30) >= 0
            pid = server.spawn(spec("hello", "world", environment={{"COLOUR": "red"}}, cpus=frozenset({{{cpu}}})))
            ended = wait(server)
            print([(each.name, each.pid == pid, each.status) for each in ended])
            print(Path("worker.log").read_text(), end="")
        """,
    )
    assert lines == ["[('worker', True, 0)]", f"hello world red [{cpu}] True"]


def test_how_processes_end(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        with ForkServer.start(["work"]) as server:
            server.spawn(spec("fail", "boom", "a"))
            server.spawn(spec("leave", "5", "b"))
            pid = server.spawn(spec("sleep", "600", "c"))
            server.spawn(spec("missing", "", "d"))
            while "asleep" not in (Path("c.log").read_text() if Path("c.log").exists() else ""):
                time.sleep(0.01)
            print(server.kill(pid, signal.SIGTERM))
            print(sorted((each.name, each.status) for each in wait(server, 4)))
            print(server.kill(pid))
            print("ValueError: boom" in Path("a.log").read_text(), "AttributeError" in Path("d.log").read_text())
            print(server.exits(0.0))
        """,
    )
    assert lines == [
        "True",
        "[('a', 1), ('b', 5), ('c', -15), ('d', 1)]",
        "False",
        "True True",
        "[]",
    ]


def test_children_share_what_was_preloaded(own_runner: Runner) -> None:
    (own_runner.folder / "preload.py").write_text("import work\nwork.MARK.append('preloaded')\n")
    lines = run(
        own_runner,
        """
        with ForkServer.start(["preload"]) as server:
            server.spawn(spec("preloaded"))
            server.spawn(spec("comm", name="a-name-that-is-far-too-long"))
            wait(server, 2)
        print(Path("worker.log").read_text(), end="")
        print(Path("a-name-that-is-far-too-long.log").read_text(), end="")
        """,
    )
    assert lines == ["['preloaded']", "a-name-that-is- True"]


def test_an_import_that_fails_is_told(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        from laggard.core.errors import DeploymentError
        for ask in (lambda server: server.wait_ready(30), lambda server: server.spawn(spec("hello"))):
            with ForkServer.start(["work", "no_such_module"], log=Path("server.log")) as server:
                try:
                    ask(server)
                except DeploymentError as error:
                    print("no_such_module" in str(error))
        print("Traceback" in Path("server.log").read_text())
        """,
    )
    assert lines == ["True", "True", "True"]


def test_why_the_imports_failed_is_told_by_a_server_that_is_gone(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        from laggard.core.errors import DeploymentError
        with ForkServer.start(["work", "no_such_module"], log=Path("server.log")) as server:
            os.waitid(os.P_PID, server.pid, os.WEXITED | os.WNOWAIT)
            try:
                server.spawn(spec("hello"))
            except DeploymentError as error:
                print("no_such_module" in str(error))
        """,
    )
    assert lines == ["True"]


def test_imports_that_start_threads_are_refused(own_runner: Runner) -> None:
    (own_runner.folder / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,),"
        " daemon=True).start()\n"
    )
    lines = run(
        own_runner,
        """
        from laggard.core.errors import DeploymentError
        with ForkServer.start(["threaded", "work"]) as server:
            server.wait_ready(30)
            try:
                server.spawn(spec("hello"))
            except DeploymentError as error:
                print(error)
        """,
    )
    assert "cannot start worker: this process has 2 threads" in lines[0]


def test_waiting_for_imports_has_an_end(own_runner: Runner) -> None:
    (own_runner.folder / "slow.py").write_text("import time\ntime.sleep(600)\n")
    lines = run(
        own_runner,
        """
        from laggard.core.errors import DeploymentError
        with ForkServer.start(["slow"]) as server:
            try:
                server.wait_ready(0.1)
            except DeploymentError as error:
                print(error)
            os.kill(server.pid, signal.SIGKILL)
        print("left")
        """,
    )
    assert lines == ["the fork server has not completed its imports within 0.1 s", "left"]


@pytest.mark.parametrize("victim", ["server", "starter", "nobody"])
def test_children_end_with_the_server_and_its_starter(own_runner: Runner, victim: str) -> None:
    (own_runner.folder / "work.py").write_text(WORK)
    process = own_runner.start(
        textwrap.dedent(HEAD)
        + textwrap.dedent("""
        server = ForkServer.start(["work"])
        pids = [server.spawn(spec("sleep", "600", f"w{n}")) for n in range(3)]
        print(server.pid, *pids, flush=True)
        sys.stdin.readline()
        server.close()
        """),
        stdin=-1,
    )
    assert process.stdout is not None
    pids = [int(word) for word in process.stdout.readline().split()]
    processes = [psutil.Process(pid) for pid in pids]
    if victim == "nobody":
        process.communicate("\n", timeout=60)
    else:
        (processes[0] if victim == "server" else psutil.Process(process.pid)).kill()
    _, still = psutil.wait_procs(processes[1:], timeout=60)
    process.kill()
    process.communicate()
    assert not still


def test_a_dead_server_is_told(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        from laggard.core.errors import DeploymentError
        with ForkServer.start(["work"]) as server:
            server.wait_ready(30)
            os.kill(server.pid, signal.SIGKILL)
            for ask in (lambda: server.exits(5.0), lambda: server.spawn(spec("hello")), lambda: server.kill(1)):
                try:
                    ask()
                except DeploymentError as error:
                    print("has ended" in str(error))
        """,
    )
    assert lines == ["True"] * 3


def test_refuses_to_start_from_a_process_with_threads(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        import threading
        from laggard.core.errors import DeploymentError
        threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        try:
            ForkServer.start(["work"])
        except DeploymentError as error:
            print("2 threads" in str(error))
        """,
    )
    assert lines == ["True"]


def test_a_hundred_processes_start(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        with ForkServer.start(["work"]) as server:
            server.wait_ready(30)
            for number in range(100):
                server.spawn(spec("hello", str(number), f"w{number}"))
            ended = wait(server, 100)
            print(len(ended), {each.status for each in ended})
        """,
    )
    assert lines == ["100 {0}"]


ALL_REDUCE = """
import json, os, socket
def main(argument):
    import torch
    import torch.distributed as dist
    plan = json.loads(argument)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file:///run/store", rank=plan["rank"], world_size=plan["world"])
    values = torch.full((100_000,), float(plan["rank"] + 1))
    dist.all_reduce(values)
    sent = open("/proc/net/dev").read().split("eth0:")[1].split()[8]
    established = [sum(line.split()[3] == "01" for line in open(f"/proc/net/{name}")) for name in ("tcp", "tcp6")]
    dist.barrier()  # nobody ends, and closes connections, before all have looked
    print(socket.gethostname(), values.unique().tolist(), int(sent) > 100_000, [count > 0 for count in established])
"""


@pytest.mark.long
def test_torch_ranks_reduce_over_their_links(runner: Runner) -> None:
    (runner.folder / "ranks.py").write_text(ALL_REDUCE)
    result = runner.run(
        textwrap.dedent(HEAD)
        + textwrap.dedent("""
        import json
        from laggard.core.hosts import Host
        from laggard.layers_services.local import namespaces, sandbox
        hosts = [Host(f"edge.a.1.{n}", "edge", "a", 1, n, f"10.77.0.{n}", ipv6=(f"fd77::{n}",)) for n in range(1, 5)]
        def function():
            with ForkServer.start(["torch", "torch._dynamo", "ranks"]) as server:
                made = namespaces.create_namespaces(hosts, "bridge")
                server.wait_ready(120)
                for rank, host in enumerate(hosts):
                    server.spawn(ProcessSpec(
                        f"rank-{rank}", host.name, "ranks:main", json.dumps({"rank": rank, "world": 4}),
                        {"GLOO_SOCKET_IFNAME": "eth0"}, Path(f"rank-{rank}.log"), made.path(host.name), made.uts_path(host.name),
                    ))
                ended = []
                while len(ended) < 4:
                    ended += server.exits(30.0)
            print(sorted((each.name, each.status) for each in ended), flush=True)
            return 0
        sandbox.run_in_sandbox(function)
        """),
        timeout_s=480,
    )
    assert result.stdout.strip() == str([(f"rank-{rank}", 0) for rank in range(4)]), result.stderr
    for rank in range(4):
        said = (runner.folder / f"rank-{rank}.log").read_text().splitlines()[-1]
        assert said == f"edge.a.1.{rank + 1} [10.0] True [True, False]", (
            "over IPv4, where the traffic of trainings is looked for"
        )


def test_closing_twice_is_closing_once(own_runner: Runner) -> None:
    lines = run(
        own_runner,
        """
        server = ForkServer.start([])
        server.wait_ready(30)
        server.close()
        server.close()
        print(Path(f"/proc/{server.pid}").exists())
        """,
    )
    assert lines == ["False"]


def test_a_spec_is_comparable() -> None:
    one = ProcessSpec("a", "h", "m:f", "", {}, Path("log"))
    assert one == ProcessSpec("a", "h", "m:f", "", {}, Path("log"))
    assert one.cpus is None
