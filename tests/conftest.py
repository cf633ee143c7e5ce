"""Options of the whole suite."""

from __future__ import annotations

import hypothesis
import pytest

pytest_plugins = ["tests.users", "tests.command_line"]

SKIPPED = 6
"""Exit status of a run in which only skipping was wrong; apart from pytest's own, since running
what failed once more does not mend it."""

REAL = frozenset({"forkery", "laggard"})
"""Fixtures that start the processes of a training, or a whole run: whose tests have the machine to
themselves."""

# Speed is for benchmarks: an example, and making one, may take as long as what runs beside it makes
# it. The same examples in every run.
hypothesis.settings.register_profile(
    "suite",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help="a skipped test fails the run (used where everything is installed)",
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is not to be disturbed."""
    if REAL & set(getattr(item, "fixturenames", ())):
        item.add_marker("alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a GPU has to compute where torch sees none; not skipped, since there is
    nothing to install."""
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if terminalreporter.config.getoption("--fail-on-skip") and skipped:
        terminalreporter.write_line(
            f"{len(skipped)} skipped, and --fail-on-skip allows none", red=True
        )


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if (
        session.config.getoption("--fail-on-skip")
        and reporter is not None
        and reporter.stats.get("skipped")
    ):
        session.exitstatus = SKIPPED
