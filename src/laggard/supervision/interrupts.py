"""What is under way ends in order when it is told to by a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupt_on_signals() -> Iterator[None]:
    """Let the first SIGINT, SIGTERM or SIGHUP end what is under way as Ctrl-C does; further ones do
    not stop what puts things in order then (machines are given back).

    What is ignored already, as SIGHUP is under nohup(1), stays so. Children that a library forks
    meanwhile inherit the handlers, and would unwind this process's stack when they are ended, and
    write its record anew: there a signal does what it does to any process. (execo forks one, which
    is ended after this process.)
    """
    own_pid = os.getpid()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getpid() != own_pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        for each in TERMINATION_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous_handlers = {
        each: signal.signal(each, handle_signal)
        for each in TERMINATION_SIGNALS
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for each, handler in previous_handlers.items():
            signal.signal(each, handler)
