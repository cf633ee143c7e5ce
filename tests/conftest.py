"""Options of the whole suite, and the end of everything that its tests start."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from laggard.core.files.program_folders import add_system_folders_to_path
from tests import leftovers

pytest_plugins = ["tests.users", "tests.command_line"]

REPOSITORY = Path(__file__).resolve().parents[1]
SKIPPED = 6
LEFT_SOMETHING = 7
"""Exit statuses of a run in which only skipping, or leaving something behind, was wrong."""

# As the command line does: an ordinary user has tests of `tc` too.
add_system_folders_to_path()

# A shell starts background jobs with SIGINT ignored, and nohup ignores SIGHUP; programs inherit
# both. Whatever tests start is to have the signals' usual effect, which a handler leaves to it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Speed is for benchmarks: an example, and making one, may take as long as what runs beside it makes
# it. The same examples in every run; continuous integration adds `--hypothesis-profile=thorough`.
hypothesis.settings.register_profile(
    "suite",
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "thorough", hypothesis.settings.get_profile("suite"), max_examples=100
)
hypothesis.settings.load_profile("suite")

_BEFORE = pytest.StashKey[leftovers.Surroundings]()
_FOLDER = pytest.StashKey[Path]()
_STARTED_TICKS = pytest.StashKey[int]()
_FAILED = pytest.StashKey[bool]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fail-on-skip",
        action="store_true",
        help="a skipped test fails the run (used where everything is installed)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Sweep what a killed session has left; mark this one, and give it a folder for all files."""
    if hasattr(config, "workerinput"):
        leftovers.mark_session()
        return
    os.environ.pop(leftovers.VARIABLE, None)
    for each in leftovers.sweep_dead_sessions():
        print(f"left by a session that was killed, and removed: {each}")  # noqa: T201
    session = leftovers.mark_session().partition("/")[0]
    config.stash[_BEFORE] = leftovers.Surroundings.look(REPOSITORY)
    config.stash[_FOLDER] = folder = leftovers.make_folder(session)
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    config.option.basetemp = config.option.basetemp or str(folder / "t")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark as long what boots kernels or a whole testbed."""
    if item.get_closest_marker("uml") or item.get_closest_marker("remote"):
        item.add_marker("long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the tests on machines with SSH servers, which take minutes each: at the end, one
    process would work on them while the others have nothing left.

    Leave out what a GPU has to compute where torch sees none; not skipped, since there is nothing
    to install.
    """
    items.sort(key=lambda item: item.get_closest_marker("remote") is None)
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not on_gpu:
        return
    import torch

    if not torch.cuda.is_available():
        config.hook.pytest_deselected(items=on_gpu)
        items[:] = [item for item in items if item not in on_gpu]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED_TICKS] = leftovers.now_ticks()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """End what a failed test has started, or it would disturb all that follow."""
    report = yield
    if report.when == "teardown" and item.stash.get(_FAILED, False):
        leftovers.end_processes(item.stash[_STARTED_TICKS])
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed
    return report


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_running() -> Iterator[None]:
    """End what the tests of a module have left running."""
    yield
    leftovers.end_processes()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.stats.get("skipped", [])
    if terminalreporter.config.getoption("--fail-on-skip") and skipped:
        terminalreporter.write_line(
            f"{len(skipped)} skipped, and --fail-on-skip allows none", red=True
        )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """Say, below pytest's own summary, what the session left behind, and fail it."""
    result = yield
    config = session.config
    if hasattr(config, "workerinput"):
        return result
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if (
        config.getoption("--fail-on-skip")
        and reporter is not None
        and reporter.stats.get("skipped")
    ):
        session.exitstatus = SKIPPED
    shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)
    if session.testsfailed:
        # With a failed test's processes the janitor of its run is ended, too.
        leftovers.remove_stale_cgroups()
    left = leftovers.find_leftovers(
        os.environ[leftovers.VARIABLE], config.stash[_BEFORE], REPOSITORY
    )
    for each in left:
        if reporter is not None:
            reporter.write_line(f"left behind: {each}", red=True)
    if left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = LEFT_SOMETHING
    return result
