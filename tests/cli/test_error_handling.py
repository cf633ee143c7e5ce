"""Errors of the operating system have the exit status of their reason."""

from __future__ import annotations

import errno
import os

import pytest

from laggard.cli.error_handling import to_own_error


@pytest.mark.parametrize(
    ("number", "status"),
    [
        *((number, 1) for number in (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE)),
        *((number, 2) for number in (errno.ENOENT, errno.EACCES, errno.EISDIR, errno.ELOOP)),
    ],
)
def test_a_full_disk_is_no_invalid_input(number: int, status: int) -> None:
    error = to_own_error(OSError(number, os.strerror(number), "runs/file"))
    assert error.exit_status == status
    assert str(error).startswith(f"runs/file: {os.strerror(number)} — ")


def test_other_errors_come_from_the_input() -> None:
    for each in (ValueError("x"), MemoryError(), RecursionError(), OSError("no number")):
        assert to_own_error(each).exit_status == 2
