"""The help of the command line: sections, an example for every command, completion."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from laggard.cli.main import main

COMMANDS = sorted(main.commands)
COLUMNS = 80


def test_every_command_stands_in_one_section_on_one_line() -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=COLUMNS)
    lines = result.output.splitlines()
    for name in COMMANDS:
        (line,) = [each for each in lines if each.split()[:1] == [name]]
        assert not line.endswith("..."), line
        assert len(line) <= COLUMNS


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_a_command_is_one_that_it_takes(name: str) -> None:
    command = main.commands[name]
    assert command.epilog is not None
    words = shlex.split(command.epilog.splitlines()[-1])
    assert words[:2] == ["laggard", name]
    assert f"laggard {name}" in CliRunner().invoke(main, [name, "--help"]).output
    context = command.make_context(name, words[2:])
    given = [p for p in command.params if isinstance(p, click.Argument) and p.required]
    assert all(context.params[str(parameter.name)] for parameter in given)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    environment = {**os.environ, "_LAGGARD_COMPLETE": f"{shell}_source"}
    start = "from laggard.cli.main import main; main(prog_name='laggard')"
    done = subprocess.run(
        [sys.executable, "-c", start],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "_LAGGARD_COMPLETE" in done.stdout, done.stderr
