"""A process that has imported what workers need and forks them on request: one JSON line in, one
out."""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from laggard.core.linux import die_with_parent

PRELOADED = set[str]()
"""Modules of the process that forks workers."""


def _run(entry: str, argument: str, log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    module, _, function = entry.partition(":")
    getattr(importlib.import_module(module), function)(argument)


def _spawn(entry: str, argument: str, log: str, path: str) -> int:
    forkery = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent(forkery)
        os.setsid()
        sys.path.insert(0, path)
        _run(entry, argument, log)
        status = 0
    except BaseException:  # noqa: BLE001 - the child ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _wait(pids: list[int], timeout_s: float) -> dict[int, int]:
    """Exit status by process; minus the signal if killed. Those that do not end in time are killed
    and missing."""
    statuses: dict[int, int] = {}
    deadline = time.monotonic() + timeout_s
    while len(statuses) < len(pids) and time.monotonic() < deadline:
        for pid in set(pids) - set(statuses):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                statuses[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    for pid in set(pids) - set(statuses):
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return statuses


@contextlib.contextmanager
def _questions_to_cuda() -> Iterator[list[str]]:
    """What is asked of torch.cuda that could initialise it, by name."""
    import torch

    asked: list[str] = []

    def told(name: str, function: object) -> object:
        @functools.wraps(function)
        def tell(*arguments: object) -> object:
            asked.append(name)
            return function(*arguments)

        return tell

    with contextlib.ExitStack() as stack:
        for name in (
            "is_available",
            "device_count",
            "init",
            "_lazy_init",
            "current_device",
            "get_device_capability",
        ):
            stack.enter_context(
                mock.patch.object(torch.cuda, name, told(name, getattr(torch.cuda, name)))
            )
        yield asked


def main() -> None:
    from laggard.workloads.plan import ENVIRONMENT, PRELOAD

    os.environ.update(ENVIRONMENT)
    # Or a GPU would multiply with ten bits of mantissa, and its losses would not be the
    # processor's.
    os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
    with _questions_to_cuda() as asked:
        for module in PRELOAD:
            importlib.import_module(module)
    PRELOADED.update(sys.modules)
    threads = next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Threads")
    )
    sys.stdout.write(
        json.dumps({"threads": threads, "sklearn": "sklearn" in sys.modules, "cuda": asked}) + "\n"
    )
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        if "spawn" in request:
            answer: object = [_spawn(**each) for each in request["spawn"]]
        else:
            answer = _wait(request["wait"], request["timeout_s"])
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # taking everything apart that was imported takes seconds
