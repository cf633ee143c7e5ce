"""Programs of administrators are found from an ordinary user's shell."""

from __future__ import annotations

import os

import pytest

from laggard.core.files.program_folders import add_system_folders_to_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/usr/bin:/bin", "/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"),
        ("/usr/sbin:/usr/bin", "/usr/sbin:/usr/bin:/usr/local/sbin:/sbin"),
    ],
)
def test_missing_folders_come_last(
    monkeypatch: pytest.MonkeyPatch, path: str, expected: str
) -> None:
    monkeypatch.setenv("PATH", path)
    for _ in range(2):
        add_system_folders_to_path()
        assert os.environ["PATH"] == expected
