"""What a stranger's text does to a terminal, and what a terminal does to a run: nothing."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.text.terminal_output import TerminalHandler, escape_lines, print_text


@given(st.text())
def test_only_line_breaks_are_kept(text: str) -> None:
    shown = escape_lines(text)
    assert all(c.isprintable() or c == "\n" for c in shown)
    assert shown.count("\n") == text.count("\n")
    shown.encode()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", "\\x1b]0;title\\x07"),
        ("a\rb\x9bc", "a\\rb\\x9bc"),
        ("\u202eabc", "\\u202eabc"),
        ("\udcfc", "\\udcfc"),
        ("ü\n→", "ü\n→"),
    ],
)
def test_control_characters_become_escapes(
    text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_text(text)
    print_text(text, err=True)
    TerminalHandler().handle(logging.makeLogRecord({"name": "laggard", "msg": text}))
    out, errors = capsys.readouterr()
    assert out == f"{shown}\n"
    assert errors == f"{shown}\nlaggard: {shown}\n"


def test_a_terminal_without_unicode(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    print_text("ü")
    assert raw.getvalue() == b"\\xfc\n"


_PROGRAM = """
from laggard.core.text.terminal_output import print_text
for _ in range(3):
    print_text("x" * 100_000)
    print_text("y" * 100_000, err=True)
"""


@pytest.mark.parametrize("closed", ["full", "pipe", "none"])
def test_a_stream_that_cannot_be_written_to_ends_nothing(closed: str) -> None:
    command = [sys.executable, "-c", _PROGRAM]
    if closed == "none":
        command = ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *command]
        assert subprocess.run(command, check=False).returncode == 0
        return
    if closed == "pipe":
        reading, writing = os.pipe()
        os.close(reading)
    else:
        writing = os.open("/dev/full", os.O_WRONLY)
    try:
        assert subprocess.run(command, check=False, stdout=writing, stderr=writing).returncode == 0
    finally:
        os.close(writing)
