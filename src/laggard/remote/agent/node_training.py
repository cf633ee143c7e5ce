"""Training processes of one node: started by fork, watched through files, reported as messages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from laggard.core.errors import DeploymentError
from laggard.core.node_values import Scalar
from laggard.core.work_counter import charge_start
from laggard.layers_services.local.launch import Exit, ForkServer, ProcessSpec
from laggard.network_emulation.compute import ShareController
from laggard.remote.agent.fidelity_sampling import NodeSampler
from laggard.remote.agent.host_limits import HostLimits
from laggard.remote.agent.messages import (
    LOG_CHUNK_BYTES,
    AgentMessage,
    AgentPlan,
    CheckpointWritten,
    FirstStepBegan,
    LogChunk,
    NodeHeartbeats,
    ProcessEnded,
    RankHeartbeat,
    RankReady,
    TrainingDone,
    TrainingProgress,
)
from laggard.remote.agent.node_clock import NodeClock
from laggard.supervision.log_tail import read_log_tail
from laggard.workloads.coordination.barrier_relay import BarrierRelay, BarrierUpdate
from laggard.workloads.coordination.progress_relay import (
    PROGRESS_UPDATE_TYPES,
    ProgressRelay,
    ProgressUpdate,
)
from laggard.workloads.coordination.start_barrier import StartBarrier
from laggard.workloads.output.training_end import TrainingEnd
from laggard.workloads.output.worker_output import WorkerOutputDir, write_whole
from laggard.workloads.plan import ENVIRONMENT, TrainingPlan, WorkerPlan
from laggard.workloads.tracing.heartbeat import read_heartbeats

HEARTBEAT_INTERVAL_S = 0.5
_END_TIMEOUT_S = 10.0
_ENTRY_POINTS = {
    "worker": "laggard.workloads.worker:main",
    "server": "laggard.workloads.serving.parameter_server:main",
    "evaluator": "laggard.workloads.evaluator:main",
    "sampler": "laggard.workloads.link_sampler:main",
    "preparer": "laggard.workloads.data_preparation:main",
}


@dataclass(frozen=True)
class _NodeProcess:
    """Process of the training: its name, its rank (-1 for none) and the file of its output."""

    name: str
    rank: int
    log: Path


class NodeTraining:
    """Processes of one node in a training.

    Args:
        plan: plan of the agent.
        server: fork server that starts the processes.
        clock: map between this node's clock and the reference clock.
        shares: controller of the host's share; None if the host is not limited.
        limits: limits of the host's drive and memory.
    """

    def __init__(
        self,
        plan: AgentPlan,
        server: ForkServer,
        clock: NodeClock,
        shares: ShareController | None,
        limits: HostLimits,
    ) -> None:
        self._plan, self._server, self._clock, self._shares, self._limits = (
            plan,
            server,
            clock,
            shares,
            limits,
        )
        self.output_dir = WorkerOutputDir(Path(plan.folder) / "workers")
        self.logs = Path(plan.folder) / "logs"
        # A rank that leaves and joins again gets another plan.
        self._workers = {worker.rank: worker for worker in plan.workers}
        self._started: set[int] = set()
        self._processes: dict[int, _NodeProcess] = {}
        self._host_pids: set[int] = set()
        self._exits: list[Exit] = []
        self._reported_files: set[str] = set()
        self._read_offsets: dict[Path, int] = {}
        self._last_heartbeat_s = 0.0
        self._checkpoint_ns = 0
        self._sampler: NodeSampler | None = None
        ranks = [worker.rank for worker in plan.workers]
        parts: tuple[TrainingPlan, ...] = (
            *plan.workers,
            *((plan.server,) if plan.server is not None else ()),
        )
        self._world_size = parts[0].world_size if parts else 1
        start_barrier = StartBarrier(self.output_dir.start_barrier, self._world_size)
        self.barrier_relay = BarrierRelay(
            start_barrier,
            ranks,
            clock.to_reference,
            clock.to_local,
            is_head=any(worker.opens for worker in plan.workers),
        )
        self._progress_relay: ProgressRelay | None = None
        if parts and parts[0].workload.strategy.peer_to_peer:
            self._progress_relay = ProgressRelay(
                self.output_dir,
                self._world_size,
                ranks,
                clock.to_reference,
                clock.to_local,
                has_coordinator=plan.evaluator is not None,
            )

    def start(self) -> None:
        """Start this node's processes; the workers connect, then wait for the start signal."""
        plan = self._plan
        if plan.evaluator is not None:
            self._spawn("evaluator", -1, plan.evaluator.to_json())
        elif plan.workers:
            self._spawn("preparer", -1, plan.workers[0].to_json())
        # A node without workers and server has no connections to sample.
        if not plan.workers and plan.server is None:
            return
        if plan.sampler is not None:
            self._spawn("sampler", -1, plan.sampler.to_json())
        if plan.server is not None:
            self._host_pids.add(self._spawn("server", -1, plan.server.to_json()))
        for worker in plan.workers:
            if not worker.late:
                self._start_worker(worker)

    def _start_worker(self, worker: WorkerPlan) -> int:
        """Start the process of a rank and return its process ID."""
        self._started.add(worker.rank)
        local = worker.model_copy(
            update={
                "interface": find_interface(self._plan.address),
                "shared": self._shares is not None,
            }
        )
        pid = self._spawn("worker", worker.rank, local.to_json(), worker.life)
        self._host_pids.add(pid)
        return pid

    def start_joining(self, rank: int) -> None:
        """Start the process of a rank that joins the training, at the share of its host."""
        worker = self._workers[rank]
        if rank in self._started:
            worker = self._workers[rank] = worker.next_life()
        pid = self._start_worker(worker)
        if self._shares is not None:
            work_file = self.output_dir.work(rank, worker.life)
            charge_start(work_file)
            self._shares.attach(self._plan.host, pid, work=work_file)

    def kill_rank(self, rank: int) -> bool:
        """Kill the process of a rank and return whether it was running."""
        pid = self._map_pids().get(rank)
        return pid is not None and self._server.kill(pid)

    def _spawn(self, kind: str, rank: int, argument: str, life: int = 0) -> int:
        name = f"rank-{rank}" if rank >= 0 else f"{kind}-{self._plan.host}"
        log = self.logs / (f"{name}.{life + 1}.log" if life else f"{name}.log")
        spec = ProcessSpec(
            name, self._plan.host, _ENTRY_POINTS[kind], argument, dict(ENVIRONMENT), log
        )
        pid = self._server.spawn(spec)
        self._processes[pid] = _NodeProcess(name, rank, log)
        return pid

    def begin(self) -> None:
        """Give the start signal; limit the workers and the server to their share from now on."""
        if self._shares is not None:
            for pid, process in self._processes.items():
                if pid in self._host_pids:
                    # Ranks on the CPU have a work counter. The server and ranks on a GPU have
                    # none.
                    counted = self.output_dir.work(process.rank)
                    self._shares.attach(
                        self._plan.host, pid, work=counted if counted.exists() else None
                    )
        self._sampler = NodeSampler(self._plan.host, self._clock, self._shares)
        write_whole(self.output_dir.start_signal, b"")

    def end(self) -> None:
        """End the link sampler, after training is over on all nodes."""
        self._sampler = None
        # The link sampler ends when `done.json` exists. Only the evaluator's node has a real one.
        if not self.output_dir.done.exists():
            write_whole(self.output_dir.done, b"{}")

    def end_processes(self) -> None:
        """Kill the processes that are left and wait for their ends; their rows are on the disk."""
        for pid in self._processes:
            self._server.kill(pid)
        deadline_s = time.monotonic() + _END_TIMEOUT_S
        while (left_s := deadline_s - time.monotonic()) > 0:
            if self._processes.keys() <= {each.pid for each in self._exits}:
                return
            self._exits += self._server.exits(left_s)

    @property
    def has_ended(self) -> bool:
        """Return whether none of the processes is left."""
        return not self._processes

    def poll_updates(self) -> Iterator[AgentMessage]:
        """Yield the messages about everything that happened since the last call."""
        exits, self._exits = [*self._exits, *self._server.exits()], []
        for ended in exits:
            process = self._processes.pop(ended.pid)
            if self._progress_relay is not None and process.rank >= 0 and ended.status < 0:
                # The progress board must not wait for the parts of a rank that was killed.
                self._progress_relay.remove_rank(process.rank)
            yield from self._read_new_log(process.log)
            yield ProcessEnded(
                name=process.name,
                rank=process.rank,
                status=ended.status,
                log_tail=read_log_tail(process.log),
            )
        yield from self.barrier_relay.poll_updates()
        if self._progress_relay is not None:
            yield from self._progress_relay.poll_updates()
        yield from self._poll_milestones()
        yield from self._limits.check_memory(
            {pid: self._processes[pid].rank for pid in self._host_pids & self._processes.keys()}
        )
        if self._sampler is not None:
            yield from self._sampler.poll_updates()
        if time.monotonic() - self._last_heartbeat_s >= HEARTBEAT_INTERVAL_S:
            self._last_heartbeat_s = time.monotonic()
            yield NodeHeartbeats(heartbeats=tuple(self._collect_heartbeats()))
            yield from self._read_new_progress()
            yield from self._look_for_checkpoint()
            for path in sorted(self.logs.glob("*.log")):
                yield from self._read_new_log(path)

    def apply_update(self, update: BarrierUpdate | ProgressUpdate) -> BarrierUpdate | None:
        """Apply an update from another node's ranks and return the answer, if there is one."""
        if isinstance(update, PROGRESS_UPDATE_TYPES):
            if self._progress_relay is not None:
                self._progress_relay.apply_update(update)
            return None
        return self.barrier_relay.apply_update(update)

    def _poll_milestones(self) -> Iterator[AgentMessage]:
        """Yield a message for each milestone that was reached since the last call."""
        for worker in self._workers.values():
            if self._is_new(self.output_dir.ready(worker.rank, worker.life)):
                yield RankReady(rank=worker.rank)
        if self._plan.server is not None and self._is_new(self.output_dir.ready(self._world_size)):
            yield RankReady(rank=self._world_size)
        if self.barrier_relay.is_head and self._is_new(self.output_dir.zero):
            zero_ns = int(json.loads(self.output_dir.zero.read_bytes())["zero_ns"])
            yield FirstStepBegan(time_ns=self._clock.to_reference(zero_ns))
        if self._plan.evaluator is not None and self._is_new(self.output_dir.done):
            yield from self._read_new_progress()
            # The last lines of progress must arrive before the report of the end.
            document = TrainingEnd.model_validate_json(self.output_dir.done.read_bytes())
            yield TrainingDone(document=document)

    def _look_for_checkpoint(self) -> Iterator[CheckpointWritten]:
        """Yield a message if rank 0 has written a checkpoint since the last call."""
        checkpoint = self.output_dir.checkpoint
        if self.barrier_relay.is_head and checkpoint.exists():
            status = checkpoint.stat()
            if status.st_mtime_ns != self._checkpoint_ns:
                self._checkpoint_ns = status.st_mtime_ns
                yield CheckpointWritten(size_bytes=status.st_size)

    def _is_new(self, path: Path) -> bool:
        if path.name in self._reported_files or not path.exists():
            return False
        self._reported_files.add(path.name)
        return True

    def _map_pids(self) -> Mapping[int, int]:
        """Return the process ID of every rank whose process has not ended, by rank."""
        return {process.rank: pid for pid, process in self._processes.items() if process.rank >= 0}

    def _collect_heartbeats(self) -> Iterator[RankHeartbeat]:
        pids, now_ns = self._map_pids(), time.monotonic_ns()
        for beat in read_heartbeats(self.output_dir.heartbeat, self._world_size):
            # The last beat of an earlier process of the rank does not count.
            if beat.time_ns and beat.pid == pids.get(beat.rank):
                cpu_s, stopped = _read_process_state(pids[beat.rank])
                yield RankHeartbeat(
                    rank=beat.rank,
                    step=beat.step,
                    phase=beat.phase.code,
                    age_s=(now_ns - beat.time_ns) / 1e9,
                    cpu_s=cpu_s,
                    stopped=stopped,
                )

    def _read_new_progress(self) -> Iterator[TrainingProgress]:
        lines = self._read_new_bytes(self.output_dir.progress, whole_lines=True).splitlines()
        if lines:
            yield TrainingProgress(lines=tuple(_load_finite(line) for line in lines))

    def _read_new_log(self, path: Path) -> Iterator[LogChunk]:
        if text := self._read_new_bytes(path, whole_lines=False):
            yield LogChunk(name=path.name, text=text.decode(errors="replace"))

    def _read_new_bytes(self, path: Path, *, whole_lines: bool) -> bytes:
        if not path.exists():
            return b""
        at = self._read_offsets.get(path, 0)
        with path.open("rb") as file:
            file.seek(at)
            content = file.read(LOG_CHUNK_BYTES)
        if whole_lines:
            content = content[: content.rfind(b"\n") + 1]
        self._read_offsets[path] = at + len(content)
        return content


def _load_finite(line: bytes) -> dict[str, Scalar]:
    """Parse a line of progress; the loss of a model that diverged is None instead of NaN."""
    values: dict[str, Scalar] = json.loads(line, parse_constant=lambda _: None)
    return values


def _read_process_state(pid: int) -> tuple[float, bool]:
    """Return the CPU seconds of a process, and whether it is stopped by a signal."""
    try:
        process = psutil.Process(pid)
        times = process.cpu_times()
        return times.user + times.system, process.status() == psutil.STATUS_STOPPED
    except psutil.NoSuchProcess:
        return 0.0, False


def find_interface(address: str) -> str:
    """Return the network device of this node that has an address, for gloo and NCCL.

    Raises:
        DeploymentError: no device has the address.
    """
    for interface, addresses in psutil.net_if_addrs().items():
        if any(each.address == address for each in addresses):
            return interface
    raise DeploymentError(
        f"no network device of this node has {address}, the address that the other nodes use for it"
    )
