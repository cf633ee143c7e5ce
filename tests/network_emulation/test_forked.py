"""Processes beside a run: what they inherit is not theirs to look through."""

from __future__ import annotations

import gc
import resource

from laggard.network_emulation.forked import run_forked

OBJECTS = 200_000
"""Some 5,000 pages of them."""


def _pages_of_a_collection() -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_a_collection_copies_nothing_of_what_was_inherited() -> None:
    """Each page that it touched would be copied, and nothing that such a process times would be
    right meanwhile."""
    inherited = [[each] for each in range(OBJECTS)]
    assert run_forked("laggard-test", _pages_of_a_collection) < 500
    assert len(inherited) == OBJECTS
