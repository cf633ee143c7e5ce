"""Start of the command line, for the script `laggard` and for `python -m laggard`."""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line.

    While its modules are imported there is nothing to clean up. Ctrl-C then ends the process at
    once, without the traceback of some import.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from laggard.cli.main import main as run_command_line

    run_command_line()


if __name__ == "__main__":
    main()
