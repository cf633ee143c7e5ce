"""Rounds of boards that were calibrated by one step, beside the rounds of the boards themselves.

    python benchmarks/board_rounds.py > rounds.md        (as root with cgroups v1, on two idle cores)

A board is a process that the kernel holds to a known quota of a core, at the end of a link of known
rate and delay. It trains rounds of a federated training in a plain loop, without Laggard. Ten usual
steps are timed on it, and `laggard calibrate` turns their mean into a share of a core. Then all
boards are emulated together, with these shares and links. The latencies of the rounds are compared: the
median of each board, and the ratio between the slowest and the fastest board of a round.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from torch.nn.functional import cross_entropy

from laggard.analysis.tables.load_run import load_run
from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.predict.calibrated_share import calibrate_share
from laggard.scenario.load import Scenario, load_scenario
from laggard.workloads.clients.client_partition import ClientPartition
from laggard.workloads.datasets import open_data, prepare_data
from laggard.workloads.streams.plan_partition import plan_partition
from laggard.workloads.workload_model import build_workload_model

ROUNDS, LEFT_OUT, BATCH = 9, 2, 32
TIMED_STEPS, WARM_UP = 10, 2
"""A quota runs out in bursts, which a single step on a fast board would show by chance."""
TCP_FRAMING = 1514 / 1448
"""Bytes of a full Ethernet frame for each byte that TCP carries in it."""
_CGROUPS = Path("/sys/fs/cgroup/cpu")
_CHUNK = 8192
Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True)
class Board:
    """Known board: its quota of a core, and its link."""

    quota: float
    rate_mbps: float
    delay_ms: float


BOARDS = (
    Board(0.30, 50, 5),
    Board(0.20, 20, 10),
    Board(0.12, 20, 20),
    Board(0.08, 10, 20),
    Board(0.05, 10, 30),
    Board(0.03, 5, 40),
)


@dataclass(frozen=True)
class MeasuredBoard:
    """Mean step of a board, and the latencies of its rounds, in seconds."""

    step_s: float
    rounds_s: tuple[float, ...]


def main() -> None:
    """Measure all boards, emulate them, and print both."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="boards-") as name:
        folder = Path(name)
        scenario = load_scenario(write_scenario(folder / "scenario", [1.0] * len(BOARDS)))
        measured = [measure_board(scenario, number, folder) for number in range(len(BOARDS))]
        shares = [calibrate_share(scenario, each.step_s, BATCH).share for each in measured]
        emulated = emulate(write_scenario(folder / "emulated", shares), folder / "runs")
    print_tables(measured, shares, emulated)


def write_scenario(folder: Path, shares: Sequence[float]) -> Path:
    """Write a scenario of a server and all boards with some shares of a core."""
    folder.mkdir()
    names = [f"edge.board.1.{number}" for number in range(1, len(BOARDS) + 1)]
    files: dict[str, object] = {
        "layers_services": {
            "environment": {"job_name": "boards", "g5k": {"cluster": "paravance"}},
            "layers": [
                {"name": "cloud", "services": [{"name": "server", "quantity": 1}]},
                {"name": "edge", "services": [{"name": "board", "quantity": len(BOARDS)}]},
            ],
        },
        "network": {
            "networks": [
                {
                    "src": name,
                    "dst": "cloud.*",
                    "delay": f"{board.delay_ms:g}ms",
                    "rate": f"{board.rate_mbps:g}mbit",
                    "symmetric": True,
                }
                for name, board in zip(names, BOARDS, strict=True)
            ]
        },
        "workflow": [],
        "heterogeneity": {
            "deterministic": [
                {"hosts": "cloud.*", "cpu": "20%"},
                *(
                    {"hosts": name, "cpu": f"{100 * share:.4g}%"}
                    for name, share in zip(names, shares, strict=True)
                ),
            ]
        },
        "workload": {
            "model": "resnet8",
            "dataset": "digits",
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            "strategy": {"name": "federated", "clients": len(BOARDS), "local_batch": BATCH},
            "placement": {"workers": ["edge.*"], "server": "cloud.*"},
            "stop": {"steps": ROUNDS},
            "evaluate_every": 10**9,
            "seed": 1,
        },
    }
    for name, content in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return folder


def measure_board(scenario: Scenario, number: int, folder: Path) -> MeasuredBoard:
    """Let a board train all rounds, and return what its server and its own clock saw."""
    board, (near, far) = BOARDS[number], socket.socketpair()
    child = os.fork()
    if not child:
        near.close()
        serve_rounds(scenario, number, folder, far)
        os._exit(0)
    far.close()
    with near, hold(child, board.quota, number):
        near.sendall(b"!")
        step_s, size = json.loads(receive(near, 64))
        rounds_s = tuple(take_round(near, bytes(size), board) for _ in range(ROUNDS))
    os.waitpid(child, 0)
    return MeasuredBoard(step_s, rounds_s)


@contextmanager
def hold(process: int, quota: float, number: int) -> Iterator[None]:
    """Hold a process to a quota of a core: a millisecond in each period."""
    group = _CGROUPS / f"board-{os.getpid()}-{number}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(round(1000 / quota)))
        (group / "cpu.cfs_quota_us").write_text("1000")
        (group / "cgroup.procs").write_text(str(process))
        yield
        (_CGROUPS / "cgroup.procs").write_text(str(process))
    finally:
        group.rmdir()


def take_round(board: socket.socket, model: bytes, link: Board) -> float:
    """Send a model and receive one, both as a link of this rate and delay would carry them."""
    began_s = time.monotonic()
    carry_s = 8 * TCP_FRAMING * len(model) / (link.rate_mbps * 1e6)
    for start in range(0, len(model), _CHUNK):
        chunk = model[start : start + _CHUNK]
        done = (start + len(chunk)) / len(model)
        wait_until(began_s + link.delay_ms / 1e3 + done * carry_s)
        board.sendall(chunk)
    receive(board, len(model))
    wait_until(time.monotonic() + link.delay_ms / 1e3 + carry_s)
    return time.monotonic() - began_s


def wait_until(time_s: float) -> None:
    """Sleep until a time of the monotonic clock."""
    time.sleep(max(time_s - time.monotonic(), 0.0))


def receive(end: socket.socket, size: int) -> bytes:
    """Receive exactly so many bytes."""
    parts: list[bytes] = []
    while (left := size - sum(map(len, parts))) > 0:
        parts.append(end.recv(min(left, 1 << 16)))
        if not parts[-1]:
            raise EOFError
    return b"".join(parts)


def serve_rounds(scenario: Scenario, number: int, folder: Path, server: socket.socket) -> None:
    """Be a board: time some steps, then train whenever a model comes, and send it back."""
    workload = scenario.workload
    prepare_data(workload, folder)
    data = open_data(workload, folder)
    tiers = tuple(host.layer for host in scenario.ranks)
    partition = plan_partition(workload, data, len(tiers), tiers)
    assert isinstance(partition, ClientPartition)
    batch = data.train.prepare(data.train.fetch(partition.list_samples(number)))
    model = build_workload_model(workload, data)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    tensors = [*model.parameters(), *(each for each in model.buffers() if each.is_floating_point())]

    def step(places: torch.Tensor) -> None:
        optimizer.zero_grad()
        cross_entropy(model(batch.inputs[places]), batch.labels[places]).backward()
        optimizer.step()

    order = torch.arange(len(batch.labels))
    receive(server, 1)
    for _ in range(WARM_UP):
        step(order[:BATCH])
    began_s = time.monotonic()
    for _ in range(TIMED_STEPS):
        step(order[:BATCH])
    step_s = (time.monotonic() - began_s) / TIMED_STEPS
    size = sum(each.numel() * each.element_size() for each in tensors)
    server.sendall(json.dumps([step_s, size]).encode().ljust(64))
    for _ in range(ROUNDS):
        received = torch.frombuffer(bytearray(receive(server, size)), dtype=torch.float32)
        load(tensors, received)
        begun = torch.cat([each.detach().flatten() for each in tensors])
        optimizer.state.clear()
        for places in torch.split(order[torch.randperm(len(order))], BATCH):
            step(places)
        change = begun - torch.cat([each.detach().flatten() for each in tensors])
        server.sendall(change.numpy().tobytes())


def load(tensors: Tensors, vector: torch.Tensor) -> None:
    """Write a vector into the parameters and buffers of a model."""
    with torch.no_grad():
        for each, part in zip(
            tensors, torch.split(vector, [each.numel() for each in tensors]), strict=True
        ):
            each.copy_(part.view_as(each))


def emulate(scenario: Path, runs: Path) -> Mapping[int, Sequence[float]]:
    """Return the seconds of every round of each board in an emulation."""
    done = run_in_subprocess(scenario, (), runs, command=("run", "--no-report"), fidelity="record")
    assert done.result is not None
    run = load_run(Path(str(done.result["folder"])))
    assert run.federated is not None
    took_s: dict[int, list[float]] = {}
    for each in run.federated.rounds:
        for answer in each.answers:
            took_s.setdefault(answer.rank, []).append(answer.took_s or 0.0)
    print(f"Dilation {done.result.get('dilation')}, status {done.result.get('status')}.\n")
    return took_s


def print_tables(
    measured: Sequence[MeasuredBoard],
    shares: Sequence[float],
    emulated: Mapping[int, Sequence[float]],
) -> None:
    """Print the latencies of all boards, then the ratios within rounds."""
    print("| board | quota | link | a step | share found | round | emulated | error |")
    print("|---|---|---|---|---|---|---|---|")
    errors = []
    for number, board in enumerate(BOARDS):
        known_s = statistics.median(measured[number].rounds_s[LEFT_OUT:])
        found_s = statistics.median(emulated[number][LEFT_OUT:])
        errors.append(abs(found_s / known_s - 1))
        print(
            f"| {number + 1} | {board.quota:.0%} | {board.rate_mbps:g} Mbit/s,"
            f" {board.delay_ms:g} ms | {1e3 * measured[number].step_s:.0f} ms |"
            f" {shares[number]:.1%} | {known_s:.2f} s | {found_s:.2f} s |"
            f" {found_s / known_s - 1:+.1%} |"
        )
    known = compare_extremes([each.rounds_s for each in measured])
    found = compare_extremes([emulated[number] for number in range(len(BOARDS))])
    print(f"\nMedian error of a board: {statistics.median(errors):.1%}, largest {max(errors):.1%}.")
    print(
        f"Slowest over fastest board of a round: {known:.1f} (boards), {found:.1f} (emulated):"
        f" {found / known - 1:+.1%}."
    )


def compare_extremes(rounds_s: Sequence[Sequence[float]]) -> float:
    """Return the median over the rounds of the slowest board's seconds over the fastest one's."""
    return statistics.median(
        max(row) / min(row) for row in list(zip(*rounds_s, strict=False))[LEFT_OUT:]
    )


if __name__ == "__main__":
    main()
