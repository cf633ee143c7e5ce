"""Signals end a run in order, and nothing but the run."""

from __future__ import annotations

import os
import signal

import pytest

from laggard.experiments.remote.ended_by_signals import ENDING, ended_by_signals

UNWOUND = 7


@pytest.mark.parametrize("number", ENDING)
def test_the_first_signal_ends_the_run_and_the_next_do_nothing(number: signal.Signals) -> None:
    before = [signal.getsignal(each) for each in ENDING]
    with pytest.raises(KeyboardInterrupt):
        _told(number)
    assert [signal.getsignal(each) for each in ENDING] == before


def _told(number: signal.Signals) -> None:
    with ended_by_signals():
        try:
            signal.raise_signal(number)
        finally:
            for each in ENDING:
                signal.raise_signal(each)


def test_what_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ended_by_signals():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_forked_child_is_ended_without_going_back_into_the_run(number: signal.Signals) -> None:
    """As execo's is, after its parent: it must not do what its parent would when told to end."""
    with ended_by_signals():
        child = os.fork()
        if child == 0:
            try:
                signal.raise_signal(number)
                signal.pause()
            except KeyboardInterrupt:
                os._exit(UNWOUND)
        _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == number
