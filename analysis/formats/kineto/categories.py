"""Categories of events, in the spelling of every version of the profiler and of every device.

All categories become those of a current trace of a CUDA device, which `step_phases.py` interprets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from laggard.analysis.formats.trace_json import Json

CATEGORIES = (
    "cpu_op",
    "user_annotation",
    "kernel",
    "gpu_memcpy",
    "gpu_memset",
    "cuda_runtime",
    "cuda_driver",
    "python_function",
)
"""Categories that are read; their positions are the codes of events.

Of the calls of Python functions, only garbage collections are read: there are very many calls."""
GARBAGE_COLLECTION = re.compile(
    r"^\W*((python[ _]?|runtime triggered )?(gc|garbage[ _]collect\w*)"
    r"|built-in (function|method) (gc\.)?collect)\b",
    re.IGNORECASE,
)

_HOST_OP, _ANNOTATION, _KERNEL, _MEMCPY, _MEMSET, _RUNTIME, _DRIVER = range(7)
PYTHON_CALL = CATEGORIES.index("python_function")
OPERATOR = len(CATEGORIES)
"""Code of the category `Operator` of torch 1.8 and 1.9: operations and annotations alike."""
MTIA_EVENT = OPERATOR + 1
"""Code of an event on an MTIA device, which may be a kernel or a transfer."""
IGNORED = MTIA_EVENT + 1
"""Code of a category that has no part in the phases."""
UNREAD = IGNORED + 1
"""Code of an unknown category."""

_CODES: Mapping[str, int] = {
    **{name: code for code, name in enumerate(CATEGORIES)},
    # torch 1.8 and 1.9
    "operator": OPERATOR,
    "memcpy": _MEMCPY,
    "memset": _MEMSET,
    "runtime": _RUNTIME,
    # AMD
    "hip_runtime": _RUNTIME,
    "hip_driver": _DRIVER,
    # Intel
    "xpu_runtime": _RUNTIME,
    "xpu_driver": _DRIVER,
    # Meta
    "mtia_runtime": _RUNTIME,
    "mtia_ccp_events": MTIA_EVENT,
    "mtia_dma": MTIA_EVENT,
    "glow_runtime": _RUNTIME,
    # Intel Gaudi, and backends outside torch
    "hpu_op": _RUNTIME,
    "privateuse1_runtime": _RUNTIME,
    "privateuse1_driver": _DRIVER,
} | dict.fromkeys(
    (
        "ac2g",
        "async",
        "async_cpu_to_gpu",
        "async_gpu",
        "cpu_instant_event",
        "critical_path",
        "cuda_event",
        "cuda_profiler_range",
        "cuda_sync",
        "external_correlation",
        "fwdbwd",
        "gpu_user_annotation",
        "hardware_counters",
        "mtia_counters",
        "mtia_insight",
        "overhead",
        "trace",
        "xpu_scope_profiler",
        "xpu_sync",
    ),
    IGNORED,
)
_ON_DEVICE = ("correlation", "stream", "device")
"""Arguments by which an event of an unknown category is known to be one of a device."""
_AUTOGRAD_NODE = re.compile(r"^(?:torch::autograd::\w+|[A-Z]\w*Backward\d*)$")
_EVALUATE = "autograd::engine::evaluate_function: "
_TO_DEVICE = "Memcpy HtoD "
# Names of copies to the device: AMD's runtime, Intel's Level Zero and unified runtime.
_COPY_TO_DEVICE = re.compile(r"CopyHostToDevice|HOST_TO_DEVICE|\b[HM]2D\b|\bHtoD\b")


def find_category_code(category: str) -> int:
    """Return the code of a category, in any capitalization; `UNREAD` if it is unknown.

    Examples:
        >>> find_category_code("xpu_runtime") == CATEGORIES.index("cuda_runtime")
        True
    """
    return _CODES.get(category.lower(), UNREAD)


def is_device_event(arguments: Mapping[str, Json]) -> bool:
    """Return True if the arguments of an event show that it is one of a device, or a call to it."""
    return any(key in arguments for key in _ON_DEVICE)


def normalize_operator(name: str) -> tuple[int, str]:
    """Return the current code and name of an event of torch 1.8 or 1.9.

    Their operations have a namespace, and their annotations do not. The nodes of the backward pass
    have none either, and torch 1.8 does not record the function that evaluates them.

    Examples:
        >>> CATEGORIES[normalize_operator("ProfilerStep#3")[0]]
        'user_annotation'
        >>> normalize_operator("AddmmBackward")[1]
        'autograd::engine::evaluate_function: AddmmBackward'
    """
    if _AUTOGRAD_NODE.match(name):
        return _HOST_OP, _EVALUATE + name
    return (_HOST_OP if "::" in name else _ANNOTATION), name


def normalize_mtia_event(name: str, arguments: Mapping[str, Json]) -> tuple[int, str]:
    """Return the code and name of an event of an MTIA device, whose transfers have a direction."""
    direction = arguments.get("direction")
    if not isinstance(direction, str):
        return _KERNEL, name
    return _MEMCPY, normalize_copy_name(f"{name} ({direction})")


def normalize_copy_name(name: str) -> str:
    """Return the name of a copy; all copies from the host to the device begin with the same words.

    Examples:
        >>> normalize_copy_name("CopyHostToDevice")
        'Memcpy HtoD (CopyHostToDevice)'
    """
    if name.startswith(_TO_DEVICE) or not _COPY_TO_DEVICE.search(name):
        return name
    return f"{_TO_DEVICE}({name})"
