"""Long work of a command in a child process, so that the command itself can always be ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from laggard.layers_services.local.forked import end_with, fork_process
from laggard.layers_services.local.signalled_wait import SignalledWait
from laggard.supervision.interrupts import interrupt_on_signals


@dataclass(frozen=True)
class ChildEnd:
    """End of a child process.

    Attributes:
        status: its exit status, or minus the number of the signal that killed it.
        first: first signal that the user sent; None if there was none.
        is_second: whether the user sent a second one, so that the child was killed at once.
    """

    status: int
    first: signal.Signals | None
    is_second: bool


def run_in_child(body: Callable[[], int], purpose: str, ending_s: float) -> ChildEnd:
    """Run a function in a fork of this process, and wait for its end.

    The first SIGINT, SIGTERM or SIGHUP raises KeyboardInterrupt in the function. The second one
    kills the child.

    Args:
        body: function that returns an exit status, 0 to 255.
        purpose: reason for the fork, as the subject of a message.
        ending_s: seconds after the first signal in which the function must end; it is killed
            afterwards.

    Raises:
        DeploymentError: this process has several threads, or cannot fork.
    """
    child = 0

    def send(number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    with SignalledWait(
        interrupt=send,
        kill=lambda: send(signal.SIGKILL),
        suspend=lambda stop: send(signal.SIGSTOP if stop else signal.SIGCONT),
        ending_s=ending_s,
    ) as wait:
        child = fork_process(purpose)
        if child == 0:
            end_with(lambda: _run_interruptible(body, wait.child_mask))
        status = os.waitstatus_to_exitcode(wait.wait(child))
    return ChildEnd(status, wait.first, wait.is_second)


def _run_interruptible(body: Callable[[], int], mask: set[int]) -> int:
    with interrupt_on_signals():
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return body()
