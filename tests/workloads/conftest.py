"""Real trainings of several processes over loopback, for the tests of this room."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
import pytest

from laggard.core.hosts import Host
from laggard.core.virtual_time import Dilation
from laggard.workloads.output.worker_output import WorkerOutputDir
from laggard.workloads.plan import (
    ServerPlan,
    WorkerPlan,
    join_exchange,
    place,
    plan_addresses,
    plan_evaluator,
    plan_link_sampler,
    plan_workers,
)
from laggard.workloads.tracing.collect import collect
from laggard.workloads.transport.keys import make_endpoints
from laggard.workloads.workload import Workload
from tests import leftovers

HERE = Path(__file__).parent
HUNG_S = 240.0
"""What has not happened by then never will; the machine may be busy with other tests."""
FIRST_PORT, PORTS_EACH, SLICES = 20_000, 1_500, 8
"""Each worker of pytest-xdist has a slice of the ports below those that the kernel gives away."""


class Forkery:
    """The other end of forkery.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "forkery.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        leftovers.exempt.add(self._process.pid)
        self.after_imports = self._answer()

    def _answer(self) -> dict[str, object]:
        assert self._process.stdout is not None
        answer: dict[str, object] = json.loads(self._process.stdout.readline())
        return answer

    def _ask(self, request: dict[str, object]) -> object:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def spawn(self, entry: str, argument: str, log: Path, path: Path = HERE) -> int:
        request = [{"entry": entry, "argument": argument, "log": str(log), "path": str(path)}]
        pids = self._ask({"spawn": request})
        assert isinstance(pids, list)
        return int(pids[0])

    def wait(self, pids: list[int], timeout_s: float = HUNG_S) -> list[int | None]:
        statuses = self._ask({"wait": pids, "timeout_s": timeout_s})
        assert isinstance(statuses, dict)
        return [statuses.get(str(pid)) for pid in pids]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(HUNG_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture(scope="session")
def forkery() -> Iterator[Forkery]:
    server = Forkery()
    yield server
    server.close()


def make_hosts(count: int, tiers: Sequence[str] = ()) -> list[Host]:
    layers = tiers or ["edge"] * count
    return [
        Host(f"{layer}.trainer.1.{i}", layer, "trainer", 1, i, "127.0.0.1")
        for i, layer in enumerate(layers, start=1)
    ]


def free_ports(count: int) -> int:
    """The first of so many ports of loopback, one after another, that nobody listens on now."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % SLICES
    start = FIRST_PORT + worker * PORTS_EACH
    offset = os.getpid() % (PORTS_EACH // 2)
    for first in range(start + offset, start + PORTS_EACH - count, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(contextlib.closing(socket.create_server(("127.0.0.1", port))))
            return first
    raise AssertionError("no free ports")


@dataclass
class Training:
    """One training on loopback."""

    forkery: Forkery
    folder: Path
    plans: tuple[WorkerPlan, ...]
    hosts: list[Host]
    path: Path
    serving: ServerPlan | None = None
    pids: list[int] = field(default_factory=list)
    aside: list[int] = field(default_factory=list)

    @property
    def output_dir(self) -> WorkerOutputDir:
        return WorkerOutputDir(self.folder / "workers")

    def start(self) -> None:
        self.output_dir.folder.mkdir(parents=True)
        start = self.forkery.spawn
        sampler = plan_link_sampler(self.plans, self.hosts, {})
        self.aside = [
            start(
                "laggard.workloads.evaluator:main",
                plan_evaluator(self.plans).to_json(),
                self.log("e"),
                self.path,
            ),
            start(
                "laggard.workloads.link_sampler:main",
                sampler.to_json(),
                self.log("s"),
                self.path,
            ),
        ]
        if self.serving is not None:
            server = self.serving.to_json()
            self.aside.append(
                start(
                    "laggard.workloads.serving.parameter_server:main",
                    server,
                    self.log("server"),
                    self.path,
                )
            )
        self.pids = [self.start_worker(plan) for plan in self.plans if not plan.late]

    def start_worker(self, plan: WorkerPlan) -> int:
        log = self.log(f"{plan.rank}.{plan.life}" if plan.life else str(plan.rank))
        return self.forkery.spawn("laggard.workloads.worker:main", plan.to_json(), log, self.path)

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = HUNG_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.005)

    def begin(self) -> None:
        nodes = [plan.rank for plan in self.plans if not plan.late] + [len(self.plans)] * (
            self.serving is not None
        )
        self.wait_for(lambda: all(self.output_dir.ready(node).exists() for node in nodes))
        self.output_dir.start_signal.touch()

    def logs(self) -> str:
        return "\n".join(
            f"--- {log.name}\n{log.read_text()}" for log in sorted(self.folder.glob("*.log"))
        )

    def finish(self) -> None:
        statuses = self.forkery.wait(self.pids + self.aside)
        assert statuses == [0] * len(statuses), self.logs()

    def done(self) -> dict[str, float]:
        done: dict[str, float] = json.loads(self.output_dir.done.read_text())
        return done

    def collect(self, dilation: float = 1.0) -> Path:
        run = self.folder / "run"
        run.mkdir(exist_ok=True)
        placed = place(self.plans[0].workload.placement, self.hosts)
        collect(self.output_dir.folder, run, placed, Dilation(dilation))
        return run

    def table(self, name: str) -> pd.DataFrame:
        return pd.read_parquet(self.collect() / f"{name}.parquet")


Train = Callable[..., Training]


@pytest.fixture(scope="session")
def train(forkery: Forkery, tmp_path_factory: pytest.TempPathFactory) -> Train:
    def run(
        workload: dict[str, object],
        world_size: int,
        *,
        path: Path = HERE,
        wait: bool = True,
        dilation: float = 1.0,
        relayed: bool = False,
        tiers: Sequence[str] = (),
        change: Mapping[str, object] | None = None,
    ) -> Training:
        folder = tmp_path_factory.mktemp("training")
        hosts = make_hosts(world_size, tiers)
        plans = plan_workers(
            Workload.model_validate(workload),
            hosts,
            folder / "workers",
            dilation,
            interface="lo",
            timeout_s=HUNG_S,
        )
        serving = None
        if plans[0].workload.strategy.uses_server or plans[0].workload.strategy.peer_to_peer:
            addresses = plan_addresses(plans[0].workload, hosts, free_ports(world_size + 1))
            plans, serving = join_exchange(plans, hosts, make_endpoints(addresses, HUNG_S))
        plans = tuple(
            plan.model_copy(update={"relayed": relayed, **(change or {})}) for plan in plans
        )
        training = Training(forkery, folder, plans, hosts, path, serving)
        training.start()
        if wait:
            training.begin()
            training.finish()
        return training

    return run
