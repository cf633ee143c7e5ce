"""A process that has imported what workers need and forks them on request: one JSON line in, one out."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path


def _run(entry: str, argument: str, log: str) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    module, _, function = entry.partition(":")
    getattr(importlib.import_module(module), function)(argument)


def _spawn(entry: str, argument: str, log: str, path: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
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
    """Exit status by process; minus the signal if killed. Those that do not end in time are killed and missing."""
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


def main() -> None:
    from laggard.workloads.plan import ENVIRONMENT, PRELOAD

    os.environ.update(ENVIRONMENT)
    for module in PRELOAD:
        importlib.import_module(module)
    threads = next(
        int(line.split()[1])
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("Threads")
    )
    sys.stdout.write(json.dumps({"threads": threads, "sklearn": "sklearn" in sys.modules}) + "\n")
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
