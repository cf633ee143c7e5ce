"""What each rank computes on and what carries its collectives: pure, and decided from what the
nodes said of themselves.

CUDA itself is never asked: the process that workers are forked from must not initialise it, since
no child could use it then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from laggard.core.errors import InputError
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.transport.plan import Backend

CPU = "cpu"


def on_devices(workers: Sequence[WorkerPlan], gpus: Mapping[str, int]) -> tuple[WorkerPlan, ...]:
    """These workers, each with its device and all with the collectives' backend.

    Args:
        workers: of all ranks, in rank order.
        gpus: how many each host has, by its name; none where it is missing.

    Raises:
        InputError: a host has GPUs, and more ranks than those.
    """
    devices = plan_devices([worker.host for worker in workers], gpus)
    backend = choose_backend(devices)
    return tuple(
        worker.model_copy(update={"device": device, "backend": backend})
        for worker, device in zip(workers, devices, strict=True)
    )


def plan_devices(hosts_by_rank: Sequence[str], gpus: Mapping[str, int]) -> tuple[str, ...]:
    """The device of every rank: its host's k-th rank has the k-th GPU; the processor, where a host
    has no GPU.

    Args:
        hosts_by_rank: names of all ranks' hosts.
        gpus: as of `on_devices`.

    Raises:
        InputError: a host has GPUs, and more ranks than those: two on one would slow each other,
            and NCCL refuses them.
    """
    ranks = Counter(hosts_by_rank)
    crowded = {host: gpus[host] for host, count in ranks.items() if 0 < gpus.get(host, 0) < count}
    if crowded:
        host, count = min(crowded.items(), key=lambda item: item[1])
        raise InputError(
            f"placement.per_host {ranks[host]}: {host} has {count} GPU{'s' * (count > 1)}, and each"
            f" of its ranks needs one of its own — lower placement.per_host to {count}"
        )
    placed: Counter[str] = Counter()
    devices = []
    for host in hosts_by_rank:
        devices.append(f"cuda:{placed[host]}" if gpus.get(host, 0) else CPU)
        placed[host] += 1
    return tuple(devices)


def choose_backend(devices: Sequence[str]) -> Backend:
    """NCCL where every rank has a GPU of its own, else gloo, which carries CUDA tensors through the
    host's memory.
    """
    return "nccl" if devices and CPU not in devices else "gloo"


def collective_environment(plan: WorkerPlan) -> dict[str, str]:
    """What a worker's environment must say before it meets the others, so that all that they
    exchange passes the emulated links.

    NCCL takes the fastest way it finds; this leaves it TCP over the experiment's interface between
    hosts, and, within one, where no link is emulated, NVLink and shared memory as it likes.

    See https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; `NCCL_HOSTID` is told of
    in its source (misc/utils.cc).
    """
    gloo = {"GLOO_SOCKET_IFNAME": plan.interface}
    if plan.device == CPU:
        return gloo
    # As nvidia-smi numbers them; CUDA by itself puts the fastest first.
    cuda = {**gloo, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if plan.backend == "gloo":
        return cuda
    return {
        **cuda,
        "NCCL_SOCKET_IFNAME": f"={plan.interface}",  # exactly this one: a bare name is a prefix
        "NCCL_SOCKET_FAMILY": "AF_INET",  # whose connections the link sampler reads
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",  # NVLink between hosts
        "NCCL_HOSTID": plan.host,  # who shares a host's memory: its ranks, and nobody else
    }
