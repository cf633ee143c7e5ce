"""Streams, the recorder, the barriers, the sampler: one process each, real files and sockets."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from laggard.core.errors import PrerequisiteError
from laggard.core.hosts import Host
from laggard.core.span_schema import WARM_UP_STEPS, Lane, Phase, link_schema
from laggard.core.virtual_time import Dilation
from laggard.workloads.coordination.start_barrier import (
    START_BARRIER,
    EvaluationVerdict,
    Reason,
    StartBarrier,
    evaluation_barrier,
)
from laggard.workloads.link_sampler import LinkSampler
from laggard.workloads.output.worker_output import (
    WorkerOutputDir,
    append_line,
    read_lines,
    write_whole,
)
from laggard.workloads.plan import ENVIRONMENT, LinkSamplerPlan, SampledHost
from laggard.workloads.tracing.collect import collect
from laggard.workloads.tracing.pending_rows import CAPACITY
from laggard.workloads.tracing.recorder import SHORT_OTHER_NS, Recorder
from laggard.workloads.tracing.row_types import LINK_ROW, SPAN_ROW, STEP_ROW
from laggard.workloads.tracing.step_result import StepResult
from laggard.workloads.tracing.stream import RowStream, read_rows
from laggard.workloads.transport.inet_diag import TcpConnection, list_connections, open_in_namespace

MS = 1_000_000


def step_row(step: int) -> tuple[int | float, ...]:
    return (step, 0, step * 10, step * 10 + 9, 0.5, 4, 8, 0, 0, 0, step, step + 1, -1)


def test_a_stream_is_read_as_written(tmp_path: Path) -> None:
    stream = RowStream(tmp_path / "s", STEP_ROW)
    for step in range(CAPACITY + 5):
        stream.append(step_row(step))
    assert len(read_rows(tmp_path / "s", STEP_ROW)) == CAPACITY + 5
    stream.close()
    assert [path.name for path in tmp_path.iterdir()] == ["s"]
    rows = read_rows(tmp_path / "s", STEP_ROW)
    assert rows["step"].tolist() == list(range(CAPACITY + 5))
    assert tuple(rows[7].tolist()) == step_row(7)


@settings(
    max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(part=st.floats(0, 1))
def test_a_stream_cut_anywhere_gives_its_whole_batches(tmp_path: Path, part: float) -> None:
    stream = RowStream(tmp_path / "s", STEP_ROW)
    ends = []
    for batch in range(4):
        for step in range(batch * 10, batch * 10 + 10):
            stream.append(step_row(step))
        stream.flush()
        ends.append((tmp_path / "s").stat().st_size)
    content = (tmp_path / "s").read_bytes()
    cut = int(part * len(content))
    (tmp_path / "cut").write_bytes(content[:cut])
    rows = read_rows(tmp_path / "cut", STEP_ROW)
    assert len(rows) == 10 * sum(end <= cut for end in ends)
    assert rows["step"].tolist() == list(range(len(rows)))
    stream.close()


def test_a_missing_stream_is_empty(tmp_path: Path) -> None:
    assert len(read_rows(tmp_path / "none", SPAN_ROW)) == 0


def test_writing_imports_nothing(tmp_path: Path) -> None:
    """pyarrow would import pandas in the middle of a training."""
    code = (
        "import sys; from pathlib import Path; from laggard.workloads.tracing.stream import *; "
        "from laggard.workloads.tracing.row_types import STEP_ROW; "
        f"s = RowStream(Path({str(tmp_path / 's')!r}), STEP_ROW); s.append((0,) * 13); s.close(); "
        "print('pandas' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **ENVIRONMENT},
    )
    assert done.stdout.strip() == "False"


def test_the_recorder_tiles_time(tmp_path: Path) -> None:
    recorder = Recorder(WorkerOutputDir(tmp_path), 1, 3)
    now = 1000 * MS
    for step in (0, WARM_UP_STEPS):
        recorder.begin_step(step, now)
        recorder.enter(Phase.FETCH, work=4, at_ns=now)
        recorder.enter(Phase.OTHER, at_ns=now + 1 * MS)
        recorder.enter(Phase.FORWARD, work=4, at_ns=now + 1 * MS + SHORT_OTHER_NS - 1)
        recorder.enter(Phase.OTHER, at_ns=now + 3 * MS)
        recorder.enter(Phase.COMM, group=1, payload_bytes=77, at_ns=now + 5 * MS)
        recorder.end_step(StepResult(0.25), 4, 12)
        now += 10 * MS
    recorder.end_phase(now)
    recorder.close()
    spans = pd.DataFrame(read_rows(WorkerOutputDir(tmp_path).spans(1), SPAN_ROW))
    assert [list(Phase)[code].value for code in spans.phase] == [
        "fetch",
        "forward",
        "other",
        "comm",
    ] * 2
    assert (spans.start_ns[1:].to_numpy() == (spans.start_ns + spans.dur_ns)[:-1].to_numpy()).all()
    assert spans.seq.tolist() == [0, 1, 2, 3] * 2
    assert spans["flags"].tolist() == [2] * 4 + [0] * 4
    assert spans.dur_ns[0] == 1 * MS + SHORT_OTHER_NS - 1
    assert (spans.group[3], spans.bytes[3], spans.work[0], spans["rank"][0]) == (1, 77, 4, 1)
    steps = read_rows(WorkerOutputDir(tmp_path).steps(1), STEP_ROW)
    assert steps["loss"].tolist() == [0.25, 0.25]


def test_buckets_belong_to_their_step(tmp_path: Path) -> None:
    recorder = Recorder(WorkerOutputDir(tmp_path), 0, 1)
    for step in range(3):
        recorder.begin_step(step)
        recorder.enter(Phase.BACKWARD)
        recorder.bucket(20, 30, 5)
        recorder.bucket(10, 25, 6)
        recorder.enter(Phase.OTHER)
        recorder.end_step(StepResult(1.0), 1, 1)
    recorder.close()
    rows = read_rows(WorkerOutputDir(tmp_path).spans(0), SPAN_ROW)
    buckets = rows[rows["lane"] == Lane.BUCKETS]
    assert buckets["step"].tolist() == [0, 0, 1, 1, 2, 2]
    assert buckets["bytes"].tolist() == [6, 5] * 3
    assert buckets["group"].tolist() == [0, 1] * 3


def test_recording_is_cheap(tmp_path: Path) -> None:
    recorder = Recorder(WorkerOutputDir(tmp_path), 0, 1)
    rounds = []
    for attempt in range(5):
        began = time.thread_time()
        for step in range(attempt * 200, attempt * 200 + 200):
            recorder.begin_step(step)
            for phase in (
                Phase.FETCH,
                Phase.PREP,
                Phase.FORWARD,
                Phase.BACKWARD,
                Phase.COMM,
                Phase.OPTIMIZER,
            ):
                recorder.enter(phase, work=1)
            recorder.end_step(StepResult(1.0), 1, 1)
        rounds.append((time.thread_time() - began) / 200)
    recorder.close()
    assert min(rounds) < 100e-6


def test_gates_open_for_all_at_one_instant(tmp_path: Path) -> None:
    start_barrier = [StartBarrier(tmp_path / "start_barrier", 3) for _ in range(3)]
    opened: dict[int, tuple[int, int]] = {}

    def pass_barrier(rank: int) -> None:
        time.sleep(0.05 * rank)
        start_barrier[rank].arrive(rank, START_BARRIER, time.monotonic_ns())
        opening = start_barrier[rank].wait(START_BARRIER)
        opened[rank] = (opening.open_ns, time.monotonic_ns())

    threads = [threading.Thread(target=pass_barrier, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    while start_barrier[0].last_arrival_ns(START_BARRIER) is None:
        assert not opened
        time.sleep(0.005)
    at_ns = start_barrier[0].open(START_BARRIER)
    for thread in threads:
        thread.join(10)
    assert {open_ns for open_ns, _ in opened.values()} == {at_ns}
    assert all(passed_ns >= at_ns for _, passed_ns in opened.values())
    assert start_barrier[1].last_arrival_ns(evaluation_barrier(0)) is None


def test_pauses_add_up_and_verdicts_arrive(tmp_path: Path) -> None:
    rank, evaluator = (
        StartBarrier(tmp_path / "start_barrier", 1),
        StartBarrier(tmp_path / "start_barrier", 1),
    )
    assert rank.last_step() is None
    rank.name_last_step(0, Reason.TIME)
    assert evaluator.last_step() == (0, Reason.TIME)
    total_ns = 0
    for evaluation in range(2):
        arrival_ns = time.monotonic_ns()
        rank.request_evaluation(11 + evaluation, final=bool(evaluation))
        rank.arrive(0, evaluation_barrier(evaluation), arrival_ns)
        assert evaluator.last_arrival_ns(evaluation_barrier(evaluation)) == arrival_ns
        assert evaluator.requested_evaluation == (11 + evaluation, bool(evaluation))
        total_ns += (
            evaluator.open(
                evaluation_barrier(evaluation), EvaluationVerdict(evaluation), arrival_ns
            )
            - arrival_ns
        )
        assert rank.wait(evaluation_barrier(evaluation)).verdict is EvaluationVerdict(evaluation)
    assert rank.paused_ns == total_ns


def test_lines_and_whole_files(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "none") == []
    append_line(tmp_path / "lines", {"step": 1, "loss": 0.5})
    append_line(tmp_path / "lines", {"step": 2, "accuracy": None})
    with (tmp_path / "lines").open("ab") as file:
        file.write(b'{"step": 3, "lo')
    assert read_lines(tmp_path / "lines") == [
        {"step": 1, "loss": 0.5},
        {"step": 2, "accuracy": None},
    ]
    write_whole(tmp_path / "whole", b"abc")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.fixture
def connection() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        peer, _ = server.accept()
        with client, peer:
            yield client, peer


def of(client: socket.socket) -> TcpConnection:
    with open_in_namespace(None) as diagnosis:
        port = client.getsockname()[1]
        return next(c for c in list_connections(diagnosis) if c.src_port == port)


def test_the_kernel_tells_by_netlink_what_it_tells_the_owner(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    """TCP_INFO of the socket itself is the oracle."""
    client, peer = connection
    client.sendall(b"x" * 50_000)
    left = 50_000
    while left:
        left -= len(peer.recv(65536))
    time.sleep(0.1)
    own = client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    by_netlink = of(client)
    assert by_netlink.dst_port == peer.getsockname()[1]
    assert socket.inet_ntoa(by_netlink.src) == "127.0.0.1"
    assert by_netlink.rtt_us == struct.unpack_from("=I", own, 68)[0]
    assert by_netlink.min_rtt_us == struct.unpack_from("=I", own, 148)[0]
    assert by_netlink.bytes_acked == struct.unpack_from("=Q", own, 120)[0] >= 50_000
    assert by_netlink.delivery_rate_bytes_per_s == struct.unpack_from("=Q", own, 160)[0] > 0
    assert by_netlink.busy_us == struct.unpack_from("=Q", own, 168)[0]
    assert by_netlink.retransmits == struct.unpack_from("=I", own, 100)[0]
    assert by_netlink.app_limited == bool(own[7] & 1)
    assert 0 <= by_netlink.last_send_ms < 60_000


def test_the_sampler_streams_what_is_between_the_hosts(
    tmp_path: Path, connection: tuple[socket.socket, socket.socket]
) -> None:
    client, peer = connection
    client.sendall(b"x" * 1000)
    peer.recv(2000)
    output_dir = WorkerOutputDir(tmp_path)
    hosts = (
        SampledHost(name="a", address="127.0.0.1", namespace=None),
        SampledHost(name="b", address="10.77.9.9", namespace=None),
    )
    stream = RowStream(output_dir.links, LINK_ROW)
    sampler = LinkSampler(
        LinkSamplerPlan(output_dir=str(tmp_path), interval_s=0.1, hosts=hosts), stream
    )
    began = time.monotonic_ns()
    sampler.sample()
    sampler.sample()
    stream.close()
    sampler.close()
    rows = read_rows(output_dir.links, LINK_ROW)
    mine = rows[rows["src_port"] == client.getsockname()[1]]
    assert len(mine) == 2
    assert (mine["src"] == 0).all()
    assert (mine["time_ns"] >= began).all()
    write_whole(output_dir.zero, json.dumps({"zero_ns": began}).encode())
    run = tmp_path / "run"
    run.mkdir()
    placed = [Host("a", "edge", "s", 1, 1, "127.0.0.1"), Host("b", "edge", "s", 1, 2, "10.77.9.9")]
    collect(tmp_path, run, placed, Dilation(2.0))
    links = pd.read_parquet(run / "links.parquet")
    link = links[links.src_port == client.getsockname()[1]].iloc[0]
    assert (link.src, link.dst) == ("a", "a")
    assert link.rtt_us == pytest.approx(mine["rtt_us"][0] / 2, abs=1)
    assert link.delivery_rate_mbps == pytest.approx(mine["delivery_rate_bytes_per_s"][0] * 8e-6 * 2)
    assert link.time_ns == (mine["time_ns"][0] - began) // 2
    import pyarrow.parquet as pq

    assert pq.read_schema(run / "links.parquet") == link_schema()


def unshare_network() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(0x40000000):
        raise OSError(ctypes.get_errno(), "unshare")


@pytest.mark.skipif(os.geteuid() != 0, reason="entering another network namespace needs root")
def test_a_namespace_shows_only_its_own_connections(
    connection: tuple[socket.socket, socket.socket],
) -> None:
    code = "import time; print('up', flush=True); time.sleep(60)"
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        preexec_fn=unshare_network,  # noqa: PLW1509
        stdout=subprocess.PIPE,
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        before = Path("/proc/thread-self/ns/net").readlink()
        with open_in_namespace(Path(f"/proc/{other.pid}/ns/net")) as diagnosis:
            assert list(list_connections(diagnosis)) == []
        assert Path("/proc/thread-self/ns/net").readlink() == before
        assert of(connection[0]).src_port == connection[0].getsockname()[1]
    finally:
        other.kill()
        other.communicate()


def test_a_namespace_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = Path("/proc/thread-self/ns/net").readlink()
    with pytest.raises(PrerequisiteError, match="cannot query TCP connections"):
        open_in_namespace(tmp_path / "file")
    assert Path("/proc/thread-self/ns/net").readlink() == before


def test_a_training_that_never_began_leaves_empty_tables(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    collected = collect(tmp_path, run, [Host("a", "edge", "s", 1, 1)], Dilation(), {"a": 0.25})
    assert (collected.spans, collected.steps, collected.links) == (0, 0, 0)
    for name in ("spans", "steps", "links"):
        assert len(pd.read_parquet(run / f"{name}.parquet")) == 0
    hosts = pd.read_parquet(run / "hosts.parquet")
    assert hosts.cpu_share.tolist() == [0.25]
    assert hosts.tier.tolist() == ["edge"]


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 10**7), min_size=1, max_size=30),
    st.floats(1, 50),
    st.integers(0, 10**15),
)
def test_dilated_spans_still_touch(durations: list[int], factor: float, zero_ns: int) -> None:
    from laggard.workloads.tracing.collect import _Clock

    ends = zero_ns + np.cumsum(durations)
    starts = ends - np.array(durations)
    clock = _Clock(zero_ns, factor)
    start, end = clock.since_zero(starts), clock.since_zero(ends)
    assert np.array_equal(start[1:], end[:-1])
    assert (end >= start).all()
    assert end[-1] == pytest.approx(sum(durations) / factor, abs=1)
