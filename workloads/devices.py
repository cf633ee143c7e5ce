"""Device of each rank and backend of the collectives, chosen from the nodes' facts.

Only `open_gpu`, which a rank calls in its own process, asks CUDA itself. The fork server must not
initialize it, since no forked process could use CUDA afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from laggard.core.errors import DeploymentError, InputError
from laggard.workloads.plan import WorkerPlan
from laggard.workloads.strategies.base.group_connections import LAZY_VARIABLE
from laggard.workloads.transport.plan import Backend

CPU = "cpu"


def on_devices(workers: Sequence[WorkerPlan], gpus: Mapping[str, int]) -> tuple[WorkerPlan, ...]:
    """Return the workers with their devices and the backend of the collectives.

    Args:
        workers: plans of all ranks, in rank order.
        gpus: number of GPUs of each host, by host name; a missing host has none.

    Raises:
        InputError: a host has GPUs, but fewer than ranks.
    """
    devices = plan_devices([worker.host for worker in workers], gpus)
    backend = choose_backend(devices)
    return tuple(
        worker.model_copy(update={"device": device, "backend": backend})
        for worker, device in zip(workers, devices, strict=True)
    )


def plan_devices(hosts_by_rank: Sequence[str], gpus: Mapping[str, int]) -> tuple[str, ...]:
    """Return the device of every rank: the k-th rank of a host gets its k-th GPU.

    Ranks on a host without GPUs compute on the CPU.

    Args:
        hosts_by_rank: host name of every rank.
        gpus: number of GPUs of each host, by host name; a missing host has none.

    Raises:
        InputError: a host has GPUs, but fewer than ranks. Two ranks on one GPU would slow each
            other down, and NCCL refuses them.
    """
    ranks = Counter(hosts_by_rank)
    crowded = {host: gpus[host] for host, count in ranks.items() if 0 < gpus.get(host, 0) < count}
    if crowded:
        host, count = min(crowded.items(), key=lambda item: item[1])
        raise InputError(
            f"placement.per_host {ranks[host]}: {host} has {count} GPU{'s' * (count > 1)}, and each"
            f" rank needs its own GPU — lower placement.per_host to {count}"
        )
    placed: Counter[str] = Counter()
    devices = []
    for host in hosts_by_rank:
        devices.append(f"cuda:{placed[host]}" if gpus.get(host, 0) else CPU)
        placed[host] += 1
    return tuple(devices)


def choose_backend(devices: Sequence[str]) -> Backend:
    """Return `nccl` if every rank has its own GPU, else `gloo`.

    Gloo carries CUDA tensors through the host's memory.
    """
    return "nccl" if devices and CPU not in devices else "gloo"


def collective_environment(plan: WorkerPlan) -> dict[str, str]:
    """Return the environment variables that keep all collectives on the emulated links.

    They must be set before the worker connects to the others. NCCL takes the fastest path that it
    finds. These variables leave it only TCP over the experiment's interface between hosts. Within
    a host, where no link is emulated, it may use NVLink and shared memory.

    See https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html; `NCCL_HOSTID` is
    documented in NCCL's source only (misc/utils.cc).
    """
    gloo = {"GLOO_SOCKET_IFNAME": plan.interface}
    if plan.connects_lazily:
        gloo[LAZY_VARIABLE] = "1"
    if plan.device == CPU:
        return gloo
    # Number the GPUs as nvidia-smi does; CUDA's default puts the fastest first.
    cuda = {**gloo, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    if plan.backend == "gloo":
        return cuda
    return {
        **cuda,
        "NCCL_SOCKET_IFNAME": f"={plan.interface}",  # `=` for an exact match, not a prefix
        "NCCL_SOCKET_FAMILY": "AF_INET",  # the link sampler reads IPv4 connections only
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",  # NVLink between hosts
        "NCCL_HOSTID": plan.host,  # only ranks of one host may use shared memory
    }


def open_gpu(plan: WorkerPlan) -> str:
    """Use a rank's GPU and try it, so that an unsuitable one fails before training.

    Returns:
        The model of the GPU.

    Raises:
        DeploymentError: the GPU cannot be used.
    """
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        torch.cuda.set_device(plan.device)
        torch.ones(1, device=plan.device).item()
        return torch.cuda.get_device_name(plan.device)
    except (RuntimeError, AssertionError) as error:
        raise DeploymentError(
            f"{plan.host}: {plan.device} cannot be used: {str(error).partition(chr(10))[0]} —"
            f" PyTorch {torch.__version__} needs a GPU and a driver that support CUDA"
            f" {torch.version.cuda}: choose other nodes"
        ) from error
