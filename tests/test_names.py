"""Names and layout: one class name means one thing, folders stay small, lines stay short."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
FOLDERS = ("src/laggard", "layers_services", "network_emulation", "workloads", "analysis")
MOST_MODULES = 15
"""Modules of one folder, without its `__init__`: what a reader takes in at a glance."""

LINE_LENGTH = 100


def _product_files() -> list[Path]:
    """Every product module once: the rooms are links below `src/laggard`."""
    return sorted(
        path
        for folder in FOLDERS
        for path in (REPOSITORY / folder).rglob("*.py")
        if not any(parent.is_symlink() for parent in path.parents)
    )


def test_a_class_name_is_defined_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for path in _product_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    assert len(places) > 100
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_a_folder_holds_few_modules() -> None:
    counts = Counter(
        str(path.parent.relative_to(REPOSITORY))
        for path in _product_files()
        if path.name != "__init__.py"
    )
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_lines_end_before_column_100() -> None:
    wide = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in _product_files()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > LINE_LENGTH
    ]
    assert wide == []


def test_experiments_holds_scenarios_and_campaigns_only() -> None:
    assert sorted((REPOSITORY / "experiments").rglob("*.py")) == []
    folders = {path.parent for path in (REPOSITORY / "experiments").rglob("*.yaml")}
    assert len(folders) > 5
    assert [str(path) for path in folders if not (path / "README.md").is_file()] == []
