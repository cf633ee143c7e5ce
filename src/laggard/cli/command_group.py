"""Help of the command line: commands in sections, each with an example."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence

import click

from laggard.cli.error_handling import (
    ENVIRONMENT_ERRORS,
    print_error,
    report_lost_output,
    to_own_error,
)
from laggard.core.errors import EXIT_INTERRUPTED
from laggard.core.files.program_folders import add_system_folders_to_path
from laggard.core.process.termination_signals import interrupt, repeat_lost_interrupts
from laggard.core.text.standard_streams import protect_standard_streams
from laggard.core.text.terminal_output import print_text

Sections = Mapping[str, Sequence[tuple[click.Command, str]]]
"""Commands with an example each, by the title of their section."""


class CommandGroup(click.Group):
    """Group of commands whose help has sections."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]  # click checks them
        self._sections: dict[str, list[str]] = {}

    def add_sections(self, sections: Sections) -> None:
        """Add all commands, each with an example in its help.

        Args:
            sections: sections in the order of the help
        """
        for title, commands in sections.items():
            self._sections[title] = [str(command.name) for command, _ in commands]
            for command, example in commands:
                # click does not rewrap a paragraph that begins with \b.
                command.epilog = f"\b\nExample:\n  {example}"
                self.add_command(command)

    def main(self, *args: object, **kwargs: object) -> object:  # type: ignore[override]
        """Run the command line, with streams whose writes never fail.

        Errors outside of a command, as in click's help, are handled here. Commands handle their own
        (see `handle_errors`).
        """
        protect_standard_streams()
        add_system_folders_to_path()
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            # From here on, an interrupt is handled (see `laggard.__main__`).
            signal.signal(signal.SIGINT, interrupt)
        try:
            with repeat_lost_interrupts():
                return super().main(*args, **kwargs)  # type: ignore[call-overload]
        except SystemExit as end:
            raise report_lost_output(end) from end
        except ENVIRONMENT_ERRORS as error:
            sys.exit(print_error(to_own_error(error)))

    def invoke(self, ctx: click.Context) -> object:
        """Run a command; an interrupt before the command's own code is no error of click's."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print_text("interrupted", err=True)
            sys.exit(EXIT_INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section with the first sentence of each command's help."""
        width = max(len(name) for names in self._sections.values() for name in names)
        limit = formatter.width - width - 6
        for title, names in self._sections.items():
            rows = [
                (name.ljust(width), command.get_short_help_str(limit))
                for name in names
                if (command := self.get_command(ctx, name)) is not None and not command.hidden
            ]
            with formatter.section(title):
                formatter.write_dl(rows)
