"""Orderly end of the current work after a termination signal."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

from laggard.core.process.termination_signals import (
    SECOND_AFTER_S,
    TERMINATION_SIGNALS,
    postpone_during_import,
    repeat_lost_interrupts,
)


@contextmanager
def interrupt_on_signals(on_second: Callable[[], object] | None = None) -> Iterator[None]:
    """Raise KeyboardInterrupt in the body at the first SIGINT, SIGTERM or SIGHUP.

    Its argument is the signal's name. Further signals do not stop the cleanup (machines are given
    back): they are ignored, or call a function. A signal that is already ignored, such as SIGHUP
    under nohup(1), stays ignored.

    Children that a library forks meanwhile inherit the handlers. Without the check of the process
    ID, a signal to such a child would unwind a copy of this process's stack and write its record
    again. In a child, the signal therefore has its default effect.

    Args:
        on_second: function to call for a later signal, which must be a second wish of the user
            (see `SECOND_AFTER_S`); None ignores it.
    """
    own_pid = os.getpid()

    def handle_signal(number: int, frame: FrameType | None) -> None:
        if os.getpid() != own_pid:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        if postpone_during_import(number, frame):
            return
        first_s = time.monotonic()

        def handle_later(_number: int, _frame: FrameType | None) -> None:
            if on_second is not None and time.monotonic() - first_s > SECOND_AFTER_S:
                on_second()

        for each in previous_handlers:
            signal.signal(each, handle_later)
        raise KeyboardInterrupt(signal.Signals(number).name)

    with _handle_signals(handle_signal) as previous_handlers:
        yield


@contextmanager
def finish_before_interrupt(on_second: Callable[[], object]) -> Iterator[None]:
    """Let the body, a cleanup, finish; then raise KeyboardInterrupt if a signal arrived meanwhile.

    Args:
        on_second: function to call for a later signal, as in `interrupt_on_signals`.
    """
    own_pid = os.getpid()
    arrived: list[tuple[str, float]] = []

    def handle_signal(number: int, _frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if os.getpid() != own_pid:
            return
        if arrived and now_s - arrived[0][1] > SECOND_AFTER_S:
            on_second()
        arrived.append((signal.Signals(number).name, now_s))

    with _handle_signals(handle_signal):
        yield
    if arrived:
        raise KeyboardInterrupt(arrived[0][0])


@contextmanager
def _handle_signals(
    handler: Callable[[int, FrameType | None], None],
) -> Iterator[Mapping[signal.Signals, object]]:
    """Handle the signals that are not ignored; yield their previous handlers."""
    previous = {
        each: signal.signal(each, handler)
        for each in TERMINATION_SIGNALS
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    try:
        with repeat_lost_interrupts():
            yield previous
    finally:
        for each, before in previous.items():
            signal.signal(each, before)


def describe_interrupt(number: signal.Signals | str | None) -> str:
    """Return the reason of an interrupt, as the record of a run states it."""
    name = number.name if isinstance(number, signal.Signals) else number
    return (
        "interrupted by the user"
        if name in (None, "", "SIGINT")
        else f"the run was ended by {name}"
    )
