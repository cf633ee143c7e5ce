"""Options of the whole suite."""

from __future__ import annotations

import pytest

pytest_plugins = ["tests.users"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip", action="store_true", help="a skipped test fails the run (used where everything is installed)"
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if terminalreporter.config.getoption("--fail-on-skip") and skipped:
        terminalreporter.write_line(f"{len(skipped)} skipped, and --fail-on-skip allows none", red=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if session.config.getoption("--fail-on-skip") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
