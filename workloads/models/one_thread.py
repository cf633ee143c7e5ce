"""Computing on one thread, as a worker on at most one core does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def compute_on_one_thread() -> Iterator[None]:
    """Let torch compute on one thread inside the context.

    A sum over several threads would depend on their number.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
