"""Reference page of the commands, generated from the help of the command line."""

from __future__ import annotations

from collections.abc import Iterator

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from laggard.cli.main import main

_INTRODUCTION = """\
`laggard COMMAND --help` prints the same text. Commands that answer questions take `--json`.
A shell [completes commands and options](../how_to/describe_a_continuum.md#complete-commands-in-a-shell).
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of all commands."""
    page = "\n\n".join(["# Commands", _INTRODUCTION, *_format_commands(main)]) + "\n"
    files.append(File.generated(config, "reference/commands.md", content=page))
    return files


def _format_commands(group: click.Group) -> Iterator[str]:
    """Format the group's help, then each command's in the order of that help."""
    with click.Context(group, info_name="laggard", max_content_width=100) as context:
        yield _format_help(group, context)
        for name in group.commands:
            command = group.commands[name]
            if command.hidden:
                continue
            with click.Context(
                command, info_name=name, parent=context, max_content_width=100
            ) as inner:
                yield f"## {name}"
                yield _format_help(command, inner)


def _format_help(command: click.Command, context: click.Context) -> str:
    return f"```text\n{command.get_help(context)}\n```"
