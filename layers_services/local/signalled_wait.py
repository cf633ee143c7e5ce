"""Wait for a child process that passes the user's signals on to it.

The first signal asks the child to end. A second one, or a child that takes too long, ends it at
once.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self

from laggard.core.process.termination_signals import SECOND_AFTER_S, list_handled_signals

_POLL_S = 0.1
_IDLE_S = 3600.0


@dataclass
class SignalledWait:
    """Wait for one child; it must begin before the child is forked, so that no signal is lost.

    Args:
        interrupt: function that passes the first signal on.
        kill: function that ends the child at once; it may be called several times.
        suspend: function that stops (True) or continues (False) the child.
        ending_s: seconds after the first signal in which the child must end.

    Attributes:
        first: first signal of the user; None if there was none.
        is_second: whether the user sent a second one.
        killed_s: time at which the child was first ended at once; None if it was not.
    """

    interrupt: Callable[[signal.Signals], None]
    kill: Callable[[], None]
    suspend: Callable[[bool], None]
    ending_s: float
    first: signal.Signals | None = None
    is_second: bool = False
    killed_s: float | None = None
    _first_s: float = 0.0
    _waited: set[signal.Signals] = field(default_factory=set)
    _mask: set[int] = field(default_factory=set)

    def __enter__(self) -> Self:
        stop = signal.getsignal(signal.SIGTSTP) is not signal.SIG_IGN
        self._waited = {*list_handled_signals(), signal.SIGCHLD}
        self._waited |= {signal.SIGTSTP} if stop else set()
        # Blocked signals wait for `sigtimedwait`, so none is lost between a fork and the wait.
        self._mask = set(signal.pthread_sigmask(signal.SIG_BLOCK, self._waited))
        return self

    def __exit__(self, *_: object) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)

    @property
    def child_mask(self) -> set[int]:
        """Return the signals that remain blocked in the child once it can handle them."""
        return self._mask - self._waited

    def wait(self, pid: int) -> int:
        """Wait for the child's end and return its wait status."""
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended == pid:
                return status
            pause_s = _IDLE_S if self.first is None else _POLL_S
            received = signal.sigtimedwait(self._waited, pause_s)
            if received is None or received.si_signo == signal.SIGCHLD:
                self._kill_if_late()
            elif received.si_signo == signal.SIGTSTP:
                self._stop()
            else:
                self._handle(signal.Signals(received.si_signo))

    def _handle(self, number: signal.Signals) -> None:
        now_s = time.monotonic()
        if self.first is None:
            self.first, self._first_s = number, now_s
            self.interrupt(number)
        elif now_s - self._first_s > SECOND_AFTER_S:
            self.is_second = True
            self._kill(now_s)

    def _kill_if_late(self) -> None:
        now_s = time.monotonic()
        if self.first is not None and (self.killed_s or now_s - self._first_s > self.ending_s):
            self._kill(now_s)

    def _kill(self, now_s: float) -> None:
        self.killed_s = self.killed_s or now_s
        self.kill()

    def _stop(self) -> None:
        """Stop the child and this process, and continue the child when this is continued."""
        self.suspend(True)
        os.kill(os.getpid(), signal.SIGSTOP)
        self.suspend(False)
