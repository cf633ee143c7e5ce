"""Signals with which a user ends a command, and how they are held back."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType

TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECOND_AFTER_S = 0.5
"""Time after the first signal from which another one is a second wish of the user.

Programs such as timeout(1) signal a process and then its group, which is one wish.
"""

_AGAIN_S = 0.02


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt: the handler of SIGINT until a command has its own."""
    if not postpone_during_import(number, frame):
        raise KeyboardInterrupt


def postpone_during_import(number: int, frame: FrameType | None) -> bool:
    """Deliver a signal again a moment later, if it arrived during an import.

    Code that runs while modules are imported converts exceptions to others, or loses them: Python
    3.11 raises RuntimeError instead of an exception in `__set_name__`.

    Args:
        number: signal that a handler received.
        frame: frame that the handler received.

    Returns:
        True if the handler must do nothing now.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _call_later(lambda: os.kill(os.getpid(), number))
            return True
        frame = frame.f_back
    return False


@contextmanager
def repeat_lost_interrupts() -> Iterator[None]:
    """Raise a KeyboardInterrupt of the body again a moment later, where Python cannot pass it on.

    Finalizers, callbacks of weak references and of the garbage collector have no caller. Python
    gives their exceptions to `sys.unraisablehook`, and goes on as if there were none.
    """
    before = sys.unraisablehook

    def handle_lost(lost: sys.UnraisableHookArgs) -> None:
        error = lost.exc_value
        if isinstance(error, KeyboardInterrupt):
            _call_later(lambda: _interrupt_again(*error.args))
        else:
            before(lost)

    sys.unraisablehook = handle_lost
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt_again(*reason: object) -> None:
    raise KeyboardInterrupt(*reason)


def _call_later(function: Callable[[], None]) -> None:
    # A timer of the kernel, since a sandbox needs a process without other threads.
    signal.signal(signal.SIGALRM, lambda *_: function())
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def list_handled_signals() -> set[signal.Signals]:
    """Return the termination signals that this process does not ignore, as under nohup(1).

    The kernel keeps a blocked signal even if it is ignored, so an ignored one must not be blocked
    and waited for.
    """
    return {each for each in TERMINATION_SIGNALS if signal.getsignal(each) is not signal.SIG_IGN}


@contextmanager
def hold_signals(numbers: Iterable[signal.Signals] | None = None) -> Iterator[None]:
    """Hold signals back in the body; they are delivered when it ends, or to a wait for them.

    Processes that start meanwhile inherit this.

    Args:
        numbers: signals to hold; None for all of `list_handled_signals`.
    """
    held = list_handled_signals() if numbers is None else numbers
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
