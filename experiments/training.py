"""Start the workers on the continuum, keep time and events, watch them to the end."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType

from laggard.drive import DriveCounters
from laggard.experiments.alarms import AlarmTeller
from laggard.experiments.churn import Churn
from laggard.experiments.continuum import Continuum
from laggard.experiments.guarding import TimedSlip, Watch, late_changes
from laggard.experiments.job import Job
from laggard.experiments.progress import TrainingState
from laggard.experiments.rank_work import slow_ranks, work_done
from laggard.experiments.supervise import Supervisor, Watched
from laggard.experiments.watch_plan import WATCHER, plan_watch
from laggard.layers_services.launch import ForkServer, ProcessSpec
from laggard.network_emulation.backend import LinkBackend, LinkCounters
from laggard.network_emulation.constraints import Pair
from laggard.network_emulation.dynamics import EventRecord, Scheduler, peak_rates
from laggard.network_emulation.memory.watch import MemoryWatch, short_overruns
from laggard.run_schema import ALARMS
from laggard.span_schema import event_schema
from laggard.work import WorkCounter, WorkDone
from laggard.workloads.model import Stop
from laggard.workloads.plan import (
    ENVIRONMENT,
    ServerPlan,
    WorkerPlan,
    join_exchange,
    plan_addresses,
    plan_evaluator,
    plan_link_sampler,
    plan_workers,
)
from laggard.workloads.spool import Scalar, read_lines, write_whole
from laggard.workloads.tracing.traffic import Traffic, read_traffic
from laggard.workloads.transport.keys import make_endpoints

READY_TIMEOUT_S = 120.0
START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 60.0
LAST_LOOK_S = 5.0


def train(job: Job, continuum: Continuum, server: ForkServer) -> tuple[TimedSlip, ...]:
    """Run the workload to its stopping rule.

    Returns:
        Where the emulation slipped meanwhile.

    Raises:
        WorkerError: a worker died or hangs.
    """
    job.spool.folder.mkdir()
    workers = plan_workers(
        job.scenario.workload,
        job.scenario.hosts,
        job.spool.folder,
        job.dilation.factor,
        drives=continuum.drives.paths,
        shared=continuum.shares.shares,
    )
    workers, serving = _exchange(job, workers)
    memory = MemoryWatch(job.scenario.memory)
    supervisor = Supervisor(
        server,
        job.spool,
        len(workers),
        job.dilation.factor,
        memory,
        bears_loss=job.scenario.workload.strategy.bears_churn,
    )
    with job.journal.stage("start workers", f"{len(workers)} ranks"):
        _start(job, continuum, server, supervisor, workers, serving)
    before = continuum.links.counters()
    churn = Churn(
        job, supervisor, workers, partial(_start_late, job, continuum, server, supervisor)
    )
    with job.journal.stage("train"):
        alarms = AlarmTeller(job.folder / ALARMS, job.scenario.hosts, job.journal.display)
        slips = _keep_time(job, continuum, supervisor, churn, alarms)
    job.journal.warn(short_overruns(memory.limits, memory.peaks))
    supervisor.wait_for_exits(END_TIMEOUT_S * job.dilation.factor)
    supervisor.linger("watcher", LAST_LOOK_S)
    alarms.update()
    lost = tuple(
        f"{each.name} on {each.host} was killed, and the others went on without it"
        for each in supervisor.lost
    )
    job.journal.warn(lost)
    job.journal.update(lost_ranks=tuple(each.rank for each in supervisor.lost))
    work = work_done(job.spool, workers)
    job.journal.warn(slow_ranks(work, workers, continuum.shares.least_efficiency))
    traffic = read_traffic(job.spool, len(workers) + 1)
    write_counters(
        job.folder,
        continuum.links,
        before,
        continuum.drives.counters(),
        memory.peaks,
        work,
        traffic,
    )
    return slips


def _exchange(
    job: Job, workers: tuple[WorkerPlan, ...]
) -> tuple[tuple[WorkerPlan, ...], ServerPlan | None]:
    """Where the strategy sends messages: keys for all, and the server's plan, if it has one."""
    workload, hosts = job.scenario.workload, job.scenario.hosts
    if not (workload.strategy.served or workload.strategy.meshed):
        return workers, None
    return join_exchange(
        workers, hosts, make_endpoints(plan_addresses(workload, hosts), workers[0].timeout_s)
    )


def _start(
    job: Job,
    continuum: Continuum,
    server: ForkServer,
    supervisor: Supervisor,
    workers: Sequence[WorkerPlan],
    serving: ServerPlan | None,
) -> None:
    """Workers meet at full speed; their shares hold from before the first step."""
    _spawn_aside(job, continuum, server, supervisor, workers)
    if serving is not None:
        log = job.logs / "server.log"
        pid = server.spawn(
            _process(job, continuum, "server", "laggard.workloads.server:main", serving, log)
        )
        supervisor.watch(Watched("the server", -1, serving.host, pid, log, inside=True))
    present = [worker for worker in workers if not worker.late]
    for worker in present:
        _start_worker(job, continuum, server, supervisor, worker)
    nodes = [worker.rank for worker in present] + ([len(workers)] if serving is not None else [])
    ready = [job.spool.ready(node) for node in nodes]
    supervisor.wait_for(ready, READY_TIMEOUT_S, "the workers did not meet")
    for process in supervisor.watched.values():
        if process.inside:
            counted = job.spool.work(process.rank)
            continuum.shares.attach(
                process.host, process.pid, work=counted if counted.exists() else None
            )
    write_whole(job.spool.go, b"")
    supervisor.wait_for(
        [job.spool.zero], START_TIMEOUT_S * job.dilation.factor, "the first step did not begin"
    )


def _start_worker(
    job: Job, continuum: Continuum, server: ForkServer, supervisor: Supervisor, worker: WorkerPlan
) -> Watched:
    name = f"rank-{worker.rank}"
    log = job.logs / (f"{name}.{worker.life + 1}.log" if worker.life else f"{name}.log")
    pid = server.spawn(_process(job, continuum, name, "laggard.workloads.worker:main", worker, log))
    joined = job.spool.ready(worker.rank, worker.life) if worker.late else None
    process = Watched(
        f"rank {worker.rank}", worker.rank, worker.host, pid, log, inside=True, joined=joined
    )
    supervisor.watch(process)
    return process


def _start_late(
    job: Job, continuum: Continuum, server: ForkServer, supervisor: Supervisor, worker: WorkerPlan
) -> Watched:
    """A worker that joins: it starts at its host's share, so that it takes nothing from those that
    train.
    """
    process = _start_worker(job, continuum, server, supervisor, worker)
    counted = job.spool.work(worker.rank, worker.life) if worker.shared else None
    if counted is not None:
        with WorkCounter(counted) as counter:
            counter.set_computes(True)
    continuum.shares.attach(process.host, process.pid, work=counted)
    return process


def _spawn_aside(
    job: Job,
    continuum: Continuum,
    server: ForkServer,
    supervisor: Supervisor,
    workers: Sequence[WorkerPlan],
) -> None:
    """The evaluator, the link sampler and the watcher: outside the continuum's hosts and shares."""
    sampler = plan_link_sampler(workers, job.scenario.hosts, continuum.namespaces.paths)
    arguments = {
        "evaluator": ("laggard.workloads.evaluator:main", plan_evaluator(workers).to_json()),
        "link_sampler": ("laggard.workloads.tracing.link_sampler:main", sampler.to_json()),
        "watcher": (f"{WATCHER}:main", plan_watch(job).model_dump_json()),
    }
    for name, (entry, argument) in arguments.items():
        log = job.logs / f"{name}.log"
        pid = server.spawn(ProcessSpec(name, "", entry, argument, dict(ENVIRONMENT), log))
        supervisor.watch(Watched(name, -1, "the controller", pid, log))


def _process(
    job: Job, continuum: Continuum, name: str, entry: str, plan: WorkerPlan | ServerPlan, log: Path
) -> ProcessSpec:
    """A process in a host of the continuum."""
    cpu = job.cpu.cpus.get(plan.host)
    return ProcessSpec(
        name=name,
        host=plan.host,
        entry=entry,
        argument=plan.to_json(),
        environment=dict(ENVIRONMENT),
        log=log,
        network_namespace=continuum.namespaces.path(plan.host),
        uts_namespace=continuum.namespaces.uts_path(plan.host),
        cpus=None if cpu is None else frozenset({cpu}),
    )


def _keep_time(
    job: Job, continuum: Continuum, supervisor: Supervisor, churn: Churn, alarms: AlarmTeller
) -> tuple[TimedSlip, ...]:
    zero_ns = int(json.loads(job.spool.zero.read_text())["zero_ns"])
    job.journal.update(first_step_s=round((zero_ns - job.started_ns) / 1e9, 3))
    scheduler = Scheduler(
        job.scenario.changes,
        continuum.links,
        continuum.shares,
        job.dilation,
        job.scenario.shares,
        job.scenario.links.pairs,
        continuum.drives,
        job.scenario.drives,
    )
    scheduler.start(zero_ns)
    churn.begin(zero_ns)
    events: tuple[EventRecord, ...] = ()
    try:
        show = _Shown(job, zero_ns)
        with Watch(
            continuum, peak_rates(job.scenario.links.pairs, job.scenario.changes), job.dilation
        ) as watch:
            while not job.spool.done.exists():
                supervisor.check(churn.patience_s)
                churn.keep_up()
                continuum.links.check_alive()
                continuum.shares.check_alive()
                if show.update():
                    alarms.update()
            churn.end()
    finally:
        events = scheduler.stop()
        write_events(job.folder, events)
    end_ns = int(json.loads(job.spool.done.read_text())["end_ns"])
    return (*watch.slips(zero_ns, end_ns), *late_changes(events, zero_ns, job.dilation, end_ns))


@dataclass
class _Shown:
    """Tells the display how far training is, at most twice a second."""

    job: Job
    zero_ns: int
    last_s: float = 0.0

    def update(self) -> bool:
        """Whether it was time to."""
        now_s = time.monotonic()
        if now_s - self.last_s < 0.5:
            return False
        self.last_s = now_s
        elapsed_s = self.job.dilation.virtual_s((time.monotonic_ns() - self.zero_ns) / 1e9)
        lines = read_lines(self.job.spool.progress)
        self.job.journal.display.training(
            training_state(lines, elapsed_s, self.job.scenario.workload.stop)
        )
        return True


def training_state(
    lines: Sequence[Mapping[str, Scalar]], elapsed_s: float, stop: Stop
) -> TrainingState:
    """Where training stands, from the progress lines of the first rank and of the evaluator.

    Args:
        lines: `progress.jsonl`; a step's line counts all ranks' samples so far.
        elapsed_s: virtual seconds since the first step began.
        stop: when training ends; time left is what its steps and time allow at the speed so far.
    """
    steps = [line for line in lines if line.get("samples") is not None]
    accuracies = [value for line in lines if isinstance(value := line.get("accuracy"), float)]
    last = steps[-1] if steps else {}
    step, samples, loss = (last.get(key) for key in ("step", "samples", "loss"))
    done = int(step) + 1 if isinstance(step, int) else 0
    fractions = [
        done / stop.steps if stop.steps else 0.0,
        elapsed_s / stop.time_s if stop.time_s else 0.0,
    ]
    fraction = min(1.0, max(fractions))
    return TrainingState(
        step=done,
        fraction=fraction,
        samples_per_s=samples / elapsed_s if isinstance(samples, int) and elapsed_s > 0 else None,
        loss=float(loss) if isinstance(loss, int | float) else None,
        accuracy=accuracies[-1] if accuracies else None,
        elapsed_s=elapsed_s,
        left_s=elapsed_s * (1 / fraction - 1) if fraction > 0 else None,
    )


def write_events(folder: Path, events: Sequence[EventRecord]) -> None:
    """`events.parquet`: what was injected and when it took effect."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [asdict(event) for event in events]
    pq.write_table(pa.Table.from_pylist(rows, schema=event_schema()), folder / "events.parquet")


def write_counters(
    folder: Path,
    links: LinkBackend,
    before: Mapping[Pair, LinkCounters],
    drives: Mapping[str, DriveCounters] = MappingProxyType({}),
    peaks: Mapping[str, int] = MappingProxyType({}),
    work: Mapping[int, WorkDone] = MappingProxyType({}),
    traffic: Sequence[Traffic] = (),
) -> None:
    """`counters.json`: what links and drives carried during training, how late the emulator was,
    what workers held, computed and sent.
    """
    rows = []
    for (src, dst), after in links.counters().items():
        first = before.get((src, dst), LinkCounters(0, 0, 0))
        change = LinkCounters(
            after.bytes - first.bytes, after.packets - first.packets, after.dropped - first.dropped
        )
        rows.append({"src": src, "dst": dst, **asdict(change)})
    document = {"backend": links.name, "lateness_ms": links.lateness_ms(), "links": rows}
    document["drives"] = [{"host": host, **asdict(counted)} for host, counted in drives.items()]
    document["memory"] = [{"host": host, "peak_bytes": held} for host, held in peaks.items()]
    document["work"] = [{"rank": rank, **asdict(done)} for rank, done in work.items()]
    document["traffic"] = [asdict(each) for each in traffic]
    (folder / "counters.json").write_text(json.dumps(document, indent=1) + "\n")
