"""The table of faults on the page about reliability is that of the tests."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.faults import Fault

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/explanation/reliability.md"


def test_the_page_has_every_fault_and_no_other() -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## Faults\n")
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert rows == [f"| {each.value.fault} | {each.value.afterwards} |" for each in Fault]


def test_every_fault_is_inflicted_by_a_test() -> None:
    inflicted = {
        argument.attr
        for path in (REPOSITORY / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "holds"
        for argument in node.args
        if isinstance(argument, ast.Attribute)
    }
    assert inflicted == set(Fault.__members__)
