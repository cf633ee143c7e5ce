"""Names of collectives in all backends: gloo, NCCL, RCCL, oneCCL, HCCL and DeepEP.

torch records a launch (`c10d::allreduce_`), the backend's own record (`gloo:all_reduce`,
`nccl:all_reduce`) and the kernel (`ncclDevKernel_AllReduce_Sum_f32_RING_LL`) of one collective. The
normalized name is the part that they have in common.
"""

from __future__ import annotations

import re

_KERNEL = re.compile(
    # NCCL and RCCL, which also has one kernel for everything: ncclDevKernel_Generic.
    r"^(?:void )?(?:rccl::)?[nr]ccl(?:Dev)?Kernel"
    # Symmetric memory of NCCL 2.27 and later.
    r"|^(?:void )?ncclSymk?(?:Dev)?(?:Kernel)?_"
    # DeepEP: dispatch and combine of experts, within and between nodes.
    r"|deep_ep::\w+(?:::\w+)*::(?:dispatch|combine|cached_notify_\w+|notify_dispatch)\b"
    # oneCCL
    r"|^(?:void )?(?:one)?ccl_\w*(?:allreduce|allgatherv?|alltoallv?|reduce_scatter|broadcast)"
    r"|^(?:void )?ccl::|\boneccl_\w+"
    # Huawei's and Intel Gaudi's libraries
    r"|^hcom_\w+",
    re.IGNORECASE,
)
_WORDS = {
    # torch's in-place and tensor variants of one collective
    "allreducecoalesced": "allreduce",
    "allreducesparse": "allreduce",
    "sparseallreduce": "allreduce",
    "allgatherbase": "allgather",
    "allgatherintotensor": "allgather",
    "allgatherintotensorcoalesced": "allgather",
    "allgatherintotensorout": "allgather",
    "allgathercoalesced": "allgather",
    "allgatherv": "allgather",
    "reducescatterbase": "reducescatter",
    "reducescattertensor": "reducescatter",
    "reducescattertensorcoalesced": "reducescatter",
    "reducescatterv": "reducescatter",
    "alltoallbase": "alltoall",
    "alltoallsingle": "alltoall",
    "alltoallv": "alltoall",
    "alltoallvc": "alltoall",
    "alltoallvd": "alltoall",
    "broadcastcoalesced": "broadcast",
    "bcast": "broadcast",
    "barrierdevice": "barrier",
    "recvanysource": "recv",
    "recvfrom": "recv",
    "isend": "send",
    "irecv": "recv",
    "sendrecv": "sendrecv",
}
_KERNEL_NAME = re.compile(
    r"[nr]ccl(?:Dev)?Kernel_(?P<name>AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv"
    r"|AllToAll|Generic)"
    r"|ncclSymk?(?:Dev)?(?:Kernel)?_(?P<symmetric>AllReduce|AllGather|ReduceScatter)"
    r"|deep_ep::\w+(?:::\w+)*::(?P<experts>dispatch|combine)\b"
    r"|\b(?:one)?ccl\w*_(?P<oneccl>allreduce|allgatherv?|alltoallv?|reduce_scatter|broadcast)"
    r"|^hcom_(?P<hccl>[a-zA-Z]+)_",
    re.IGNORECASE,
)


def is_collective_kernel(name: str) -> bool:
    """Return True if a kernel communicates with other ranks.

    Examples:
        >>> is_collective_kernel("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)")
        True
        >>> is_collective_kernel("nccl_free_gemm")
        False
    """
    return _KERNEL.search(name) is not None


def normalize_collective_name(name: str) -> str:
    """Return the name that a launch, the backend's record and the kernel have in common.

    It is empty for a kernel whose name does not tell the collective.

    Examples:
        >>> normalize_collective_name("c10d::_allgather_base_")
        'allgather'
        >>> normalize_collective_name("gloo:all_reduce")
        'allreduce'
    """
    kernel = _KERNEL_NAME.search(name)
    if kernel:
        name = next(group for group in kernel.groups() if group)
    elif is_collective_kernel(name):
        return ""
    word = name.rsplit(":", 1)[-1].replace("_", "").lower()
    return _WORDS.get(word, word)


_RECORDED = (
    "c10d::",
    "_c10d_functional::",
    "c10d_functional::",
    "record_param_comms",
    "gloo:",
    "nccl:",
    "mpi:",
    "ucc:",
    "xccl:",
    "hccl:",
    "ccl:",
)


def is_collective(name: str) -> bool:
    """Return True if an event is a launch, a backend's record or a kernel of a collective."""
    return name.startswith(_RECORDED) or is_collective_kernel(name)
