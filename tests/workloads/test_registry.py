"""The registry of strategies: one entry makes a strategy known everywhere."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from laggard.workloads.plan import PRELOAD
from laggard.workloads.strategies.registry import (
    STRATEGIES,
    STRATEGY_NAMES,
    format_strategy_table,
)
from laggard.workloads.workload import Workload

REPOSITORY = Path(__file__).resolve().parents[2]


def test_the_documentation_has_the_table_of_all_strategies() -> None:
    page = (REPOSITORY / "docs/strategies.md").read_text(encoding="utf-8")
    _, _, rest = page.partition("<!-- strategies -->\n")
    table, end, _ = rest.partition("<!-- /strategies -->")
    assert end
    assert table == format_strategy_table()


@pytest.mark.parametrize("name", STRATEGY_NAMES)
def test_every_strategy_parses_to_its_parameters(name: str) -> None:
    workload = {"model": "mlp", "dataset": "digits", "strategy": name}
    strategy = Workload.model_validate(workload).strategy
    assert type(strategy) is STRATEGIES[STRATEGY_NAMES.index(name)]
    assert strategy.name == name


@pytest.mark.parametrize(
    ("strategy", "ranks", "key"),
    [
        ({"name": "backup_workers", "backups": 3}, 3, "backups"),
        ({"name": "backup_workers", "backups": 2}, 3, None),
        ({"name": "hop", "backups": 1}, 2, "backups"),
        ({"name": "hop", "backups": 1}, 3, None),
        ("gossip", 1, None),
    ],
)
def test_parameters_that_do_not_suit_the_number_of_ranks(
    strategy: object, ranks: int, key: str | None
) -> None:
    workload = {"model": "mlp", "dataset": "digits", "strategy": strategy}
    problem = Workload.model_validate(workload).strategy.check_ranks(ranks)
    assert (problem and problem.key) == key


@pytest.mark.long
def test_workers_import_no_module_that_was_not_preloaded() -> None:
    """Strategies import heavy modules in functions; a worker would pay for them on its share of a
    core."""
    wanted = {
        node.module
        for path in (REPOSITORY / "workloads/strategies").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("laggard.")
    }
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\n"
    loaded = subprocess.run(
        [sys.executable, "-c", code + "print(*sys.modules)", *PRELOAD],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert wanted - set(loaded) == set()
