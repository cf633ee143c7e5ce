"""Plans of all processes of a training: their hosts and arguments; pure, without heavy imports."""

from __future__ import annotations

import pkgutil
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from pydantic import BaseModel, ConfigDict, Field

from laggard.core import selection
from laggard.core.errors import InputError
from laggard.core.hosts import Host, select_hosts
from laggard.core.selection.round_forecast import ClientProfile
from laggard.workloads import compress, strategies
from laggard.workloads.specification.churn import absent_at_start, turns
from laggard.workloads.specification.training import Placement
from laggard.workloads.strategies.federated.parameters import FederatedParameters
from laggard.workloads.transport.plan import FIRST_PORT, Backend, EndpointPlan
from laggard.workloads.workload import Workload

_STRATEGY_PACKAGES = (compress, strategies, selection)
PRELOAD = (
    "numpy",
    "pyarrow",
    "torch",
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.nn.parallel",
    "laggard.core.rules.federated_rounds",
    "laggard.workloads.worker",
    "laggard.workloads.evaluator",
    "laggard.workloads.link_sampler",
    "laggard.workloads.serving.parameter_server",
    "laggard.workloads.tracing.ddp_timing",
    "laggard.workloads.tracing.device_clock",
    *(
        module.name
        for package in _STRATEGY_PACKAGES
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    ),
)
"""Modules that the fork server imports before it forks workers. Strategies import heavy modules
inside functions, so all of their modules are listed here; otherwise each worker would import them
on its share of a core. DistributedDataParallel would import `torch._dynamo`, which takes 1.3 CPU
seconds."""

ENVIRONMENT: Mapping[str, str] = MappingProxyType(
    {
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
)
"""Variables that are set before the imports, so that libraries start no threads: a process with
threads cannot safely fork, and a worker's share is part of one core. They also keep libraries that
look for CUDA from initializing it; no forked process could use it then."""

LINK_SAMPLE_HZ = 5.0
"""Samples per virtual second of each connection."""


class ProcessPlan(BaseModel):
    """Plan of one process of a training, passed as one JSON argument."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def to_json(self) -> str:
        """Return the argument of the process's `main`."""
        return self.model_dump_json(by_alias=True)


class TrainingPlan(ProcessPlan):
    """Plan that workers, server and evaluator have in common.

    Attributes:
        world_size: number of workers.
        workload: workload that they train.
        output_dir: folder that all processes of the training stream their records into.
        dilation: real seconds per virtual second.
        relayed: whether some ranks run on other machines, which have their own output folders.
        absent: ranks that are not present when training begins; no other rank waits for them.
    """

    world_size: int = Field(ge=1)
    workload: Workload
    output_dir: str
    dilation: float = Field(default=1.0, ge=1)
    relayed: bool = False
    absent: tuple[int, ...] = ()

    @property
    def output_path(self) -> Path:
        """Folder that the processes stream their records into."""
        return Path(self.output_dir)


class WorkerPlan(TrainingPlan):
    """Plan of one worker.

    Attributes:
        rank: number of the worker in the collective, from 0.
        host: name of its host.
        hosts_by_rank: host name of every rank.
        tiers: layer of every rank's host.
        init_method: URL of the rendezvous for torch.distributed.
        interface: network device that carries the training traffic.
        timeout_s: real seconds after which a collective that does not move is an error.
        device: device that the worker computes on, as torch names it.
        backend: library that carries the collectives of all ranks.
        drive: file of its host's drive (`laggard.core.emulated_drive`); None if the drive is not
            limited.
        shared: whether its host is limited to a share of a core; the rank then measures its full
            speed first and counts its work.
        endpoint: its endpoint in the exchange of messages; None if the strategy sends none.
        late: whether the worker joins a training that has begun.
        life: number of processes that this rank had before.
        is_free_rider: whether it is a client that answers without having trained.
    """

    rank: int = Field(ge=0)
    host: str
    hosts_by_rank: tuple[str, ...]
    tiers: tuple[str, ...]
    init_method: str
    interface: str = "eth0"
    timeout_s: float = Field(default=300.0, gt=0)
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda:\d+)$")
    backend: Backend = "gloo"
    drive: str | None = None
    shared: bool = False
    endpoint: EndpointPlan | None = None
    late: bool = False
    life: int = Field(default=0, ge=0)
    is_free_rider: bool = False

    @property
    def opens(self) -> bool:
        """Return whether this rank opens the start barrier: it is the first present rank."""
        return self.rank == min(set(range(self.world_size)) - set(self.absent), default=0)

    @property
    def connects_lazily(self) -> bool:
        """Return whether collectives connect only the ranks that they need to connect.

        Ranks of several machines use torch's default, a connection between every two ranks.
        """
        return self.backend == "gloo" and not self.relayed

    @property
    def session(self) -> int:
        """Session number of the rank, which counts its joins; 0 if present when training begins."""
        return self.life + self.late

    def next_life(self) -> WorkerPlan:
        """Return the plan of the process that replaces this one when its rank comes back."""
        return self.model_copy(update={"late": True, "life": self.life + 1})


class ServerPlan(TrainingPlan):
    """Plan of the parameter server, which keeps the model.

    Attributes:
        host: name of its host.
        endpoint: its endpoint in the exchange of messages.
        tiers: layer of every rank's host.
        profiles: profile of each client of a federated training.
    """

    host: str
    endpoint: EndpointPlan
    tiers: tuple[str, ...] = ()
    profiles: tuple[ClientProfile, ...] = ()


class EvaluatorPlan(TrainingPlan):
    """Plan of the process that prepares the data and evaluates snapshots, outside the continuum.

    Attributes:
        tiers: layer of every rank's host.
    """

    tiers: tuple[str, ...] = ()


class SampledHost(ProcessPlan):
    """Host whose TCP connections are sampled.

    Attributes:
        name: name of the host.
        address: its IPv4 address.
        namespace: path of its network namespace; None for the sampler's own.
    """

    name: str
    address: str
    namespace: str | None


class LinkSamplerPlan(ProcessPlan):
    """Plan of the process that samples the hosts' connections.

    Attributes:
        output_dir: folder of the training's records.
        interval_s: real seconds between two samples.
        hosts: hosts to sample, in the order of their numbers.
    """

    output_dir: str
    interval_s: float = Field(gt=0)
    hosts: tuple[SampledHost, ...]


def unmatched_patterns(placement: Placement, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return the patterns of a placement that match no host."""
    patterns = (*placement.workers, *((placement.server,) if placement.server else ()))
    return tuple(pattern for pattern in patterns if not select_hosts(pattern, hosts))


def place(placement: Placement, hosts: Sequence[Host]) -> tuple[Host, ...]:
    """Return the host of every rank.

    Hosts are ordered by the first pattern that matches them. Each host appears `per_host` times.

    Raises:
        InputError: a pattern matches no host.
    """
    unmatched = unmatched_patterns(placement, hosts)
    if unmatched:
        known = ", ".join(host.name for host in hosts[:8])
        raise InputError(
            f"placement: {unmatched[0]} matches no host — the hosts are"
            f" {known}{', …' * (len(hosts) > 8)}"
        )
    chosen = {
        host.name: host for pattern in placement.workers for host in select_hosts(pattern, hosts)
    }
    # A dict keeps the position of a key's first insertion, so a later pattern moves no host.
    return tuple(host for host in chosen.values() for _ in range(placement.per_host))


def plan_workers(
    workload: Workload,
    hosts: Sequence[Host],
    output_dir: Path,
    dilation: float = 1.0,
    *,
    interface: str = "eth0",
    init_method: str | None = None,
    timeout_s: float = 300.0,
    drives: Mapping[str, Path] = MappingProxyType({}),
    shared: Container[str] = (),
) -> tuple[WorkerPlan, ...]:
    """Return one plan per rank, in rank order.

    Args:
        workload: workload to train; its dataset's folder must be absolute.
        hosts: all hosts of the continuum.
        output_dir: folder for the records.
        dilation: real seconds per virtual second.
        interface: network device of the training traffic.
        init_method: URL of the rendezvous; a file in the output folder if None.
        timeout_s: virtual seconds after which a collective that does not move is an error.
        drives: file of every limited drive, by host name.
        shared: names of the hosts that are limited to a share of a core.

    Raises:
        InputError: a pattern matches no host, or there are more workers than samples in a batch.
    """
    placed = place(workload.placement, hosts)
    if workload.batch_size < len(placed):
        raise InputError(
            f"batch_size {workload.batch_size}: each of the {len(placed)} workers needs at least"
            f" one sample per step — set it to {len(placed)} or more"
        )
    names = tuple(host.name for host in placed)
    meeting = init_method or f"file://{(output_dir / 'rendezvous').absolute()}"
    late = absent_at_start(turns(workload.churn_entries, hosts, placed))
    absent = tuple(rank for rank, host in enumerate(placed) if host.name in late)
    strategy = workload.strategy
    tokens = strategy.tokens if isinstance(strategy, FederatedParameters) else None
    free_riders = frozenset() if tokens is None else tokens.list_free_riders(placed)
    return tuple(
        WorkerPlan(
            rank=rank,
            world_size=len(placed),
            host=host.name,
            hosts_by_rank=names,
            tiers=tuple(each.layer for each in placed),
            workload=workload,
            init_method=meeting,
            interface=interface,
            output_dir=str(output_dir),
            dilation=dilation,
            timeout_s=timeout_s * dilation,
            drive=str(drives[host.name]) if host.name in drives else None,
            shared=host.name in shared,
            absent=absent,
            late=rank in absent,
            is_free_rider=rank in free_riders,
        )
        for rank, host in enumerate(placed)
    )


def place_server(placement: Placement, hosts: Sequence[Host]) -> Host:
    """Return the server's host: the first match of its pattern, or else the first rank's host.

    Raises:
        InputError: a pattern matches no host.
    """
    ranks = place(placement, hosts)
    return select_hosts(placement.server, hosts)[0] if placement.server else ranks[0]


def plan_addresses(
    workload: Workload, hosts: Sequence[Host], first_port: int = FIRST_PORT
) -> tuple[str, ...]:
    """Return the addresses of all nodes: the ranks, then the server, if there is one."""
    nodes = [*place(workload.placement, hosts)]
    if workload.strategy.uses_server:
        nodes.append(place_server(workload.placement, hosts))
    return tuple(f"{host.address}:{first_port + node}" for node, host in enumerate(nodes))


def join_exchange(
    workers: Sequence[WorkerPlan],
    hosts: Sequence[Host],
    endpoints: Sequence[EndpointPlan],
    profiles: tuple[ClientProfile, ...] = (),
) -> tuple[tuple[WorkerPlan, ...], ServerPlan | None]:
    """Return the workers with their endpoints, and the plan of the server, if there is one.

    Args:
        workers: plans of all ranks, in rank order.
        hosts: all hosts of the continuum.
        endpoints: endpoints of all ranks, then the server's.
        profiles: profile of each client of a federated training.
    """
    first = workers[0]
    joined = tuple(
        worker.model_copy(update={"endpoint": endpoint})
        for worker, endpoint in zip(workers, endpoints[: len(workers)], strict=True)
    )
    if not first.workload.strategy.uses_server:
        return joined, None
    server = ServerPlan(
        world_size=first.world_size,
        workload=first.workload,
        output_dir=first.output_dir,
        dilation=first.dilation,
        host=place_server(first.workload.placement, hosts).name,
        endpoint=endpoints[-1],
        absent=first.absent,
        tiers=first.tiers,
        profiles=profiles,
    )
    return joined, server


def plan_evaluator(workers: Sequence[WorkerPlan]) -> EvaluatorPlan:
    """Return the plan of the evaluator of these workers."""
    first = workers[0]
    return EvaluatorPlan(
        world_size=first.world_size,
        workload=first.workload,
        output_dir=first.output_dir,
        dilation=first.dilation,
        relayed=first.relayed,
        tiers=first.tiers,
    )


def sampled_hosts(workload: Workload, hosts: Sequence[Host]) -> tuple[str, ...]:
    """Return the names of the hosts between which training traffic flows.

    They are in rank order, then the server's host; the link sampler numbers them in this order.
    """
    nodes = [*place(workload.placement, hosts)]
    if workload.strategy.uses_server:
        nodes.append(place_server(workload.placement, hosts))
    return tuple(dict.fromkeys(host.name for host in nodes))


def plan_link_sampler(
    workers: Sequence[WorkerPlan], hosts: Sequence[Host], namespaces: Mapping[str, Path]
) -> LinkSamplerPlan:
    """Return the plan of the sampler of these workers' connections, at 5 Hz of virtual time.

    Args:
        workers: plans of all ranks.
        hosts: all hosts, with their addresses.
        namespaces: path of each host's network namespace, by host name; a missing host is in the
            caller's own namespace.
    """
    first, addresses = workers[0], {host.name: host.address for host in hosts}
    sampled = tuple(
        SampledHost(
            name=name,
            address=addresses[name],
            namespace=str(namespaces[name]) if name in namespaces else None,
        )
        for name in sampled_hosts(first.workload, hosts)
    )
    return LinkSamplerPlan(
        output_dir=first.output_dir, interval_s=first.dilation / LINK_SAMPLE_HZ, hosts=sampled
    )
