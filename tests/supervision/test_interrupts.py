"""Signals end a run in order, and nothing but the run."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from laggard.supervision.interrupts import TERMINATION_SIGNALS, interrupt_on_signals

UNWOUND = 7


@pytest.mark.parametrize("number", TERMINATION_SIGNALS)
def test_the_first_signal_ends_the_run_and_the_next_do_nothing(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in TERMINATION_SIGNALS]
    with pytest.raises(KeyboardInterrupt):
        _told(number)
    assert [signal.getsignal(each) for each in TERMINATION_SIGNALS] == before


def _told(number: signal.Signals) -> None:
    with interrupt_on_signals():
        try:
            signal.raise_signal(number)
        finally:
            for each in TERMINATION_SIGNALS:
                signal.raise_signal(each)


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupt_on_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


FORKING = f"""
import os, signal, sys
from laggard.supervision.interrupts import interrupt_on_signals
number = signal.Signals(int(sys.argv[1]))
with interrupt_on_signals():
    child = os.fork()
    if child == 0:
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        except KeyboardInterrupt:
            os._exit({UNWOUND})
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_forked_child_is_ended_without_going_back_into_the_run(number: signal.Signals) -> None:
    """A library's, after its parent: it must not do what its parent would when told to end."""
    words = [sys.executable, "-c", FORKING, str(int(number))]
    ended = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert int(ended.stdout) == -number
