"""The house: rooms import the foundation and themselves, only experiments composes; light commands
import nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
ROOMS = ("experiments", "layers_services", "network_emulation", "workloads", "analysis")
FOUNDATION = tuple(
    path.stem for path in (REPOSITORY / "src/laggard").glob("*.py") if path.stem != "__init__"
)
HEAVY = (
    "torch",
    "enoslib",
    "e2clab",
    "ansible",
    "pandas",
    "pyarrow",
    "matplotlib",
    "sklearn",
    "scipy",
    "execo",
    "ruptures",
)


def _modules(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """Names of modules in text, as `importlib` and the fork server take them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.startswith("laggard.")
        ):
            yield node.lineno, node.value


def _room_of(name: str) -> str | None:
    parts = name.split(".")
    return parts[1] if parts[0] == "laggard" and len(parts) > 1 and parts[1] in ROOMS else None


@pytest.mark.parametrize("room", [room for room in ROOMS if room != "experiments"])
def test_a_room_imports_the_foundation_and_itself(room: str) -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for path in _modules(room)
        for line, name in (*_imports(path), *_strings(path))
        if _room_of(name) not in (None, room)
    ]
    assert wrong == []


def test_the_foundation_imports_no_room() -> None:
    paths = sorted((REPOSITORY / "src/laggard").glob("*.py"))
    assert paths
    assert [name for path in paths for _, name in _imports(path) if _room_of(name)] == []


@pytest.mark.parametrize("room", ROOMS)
def test_imports_are_absolute_and_under_laggard(room: str) -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for path in _modules(room)
        for line, name in _imports(path)
        if name.startswith(".") or name.split(".")[0] in ROOMS
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ROOMS)
def test_what_is_imported_from_laggard_exists(room: str) -> None:
    known = {
        "laggard",
        *(f"laggard.{name}" for name in FOUNDATION),
        *(f"laggard.{name}" for name in ROOMS),
    }
    for name in ROOMS:
        for path in _modules(name):
            dotted = ".".join(("laggard", *path.relative_to(REPOSITORY).with_suffix("").parts))
            known.add(dotted.removesuffix(".__init__"))
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}: {name}"
        for path in _modules(room)
        for line, name in _imports(path)
        if name.split(".")[0] == "laggard"
        and name not in known
        and name.rpartition(".")[0] not in known
    ]
    assert wrong == []


def _imported_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')"
    return set(
        subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True
        ).stdout.split()
    )


@pytest.mark.parametrize(
    "statement",
    [
        "import laggard.cli.main",
        "import laggard.scenario.run_plan",
        "import laggard.run_folder.store",
        (
            "from pathlib import Path; from laggard.scenario.load import load_scenario; "
            f"load_scenario(Path({str(REPOSITORY / 'experiments/quickstart')!r}))"
        ),
    ],
)
def test_light_commands_import_nothing_heavy(statement: str) -> None:
    assert _imported_by(statement) & set(HEAVY) == set()


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    """Ansible's children run scripts beside which such a module would be found first."""
    names = [path.stem for room in ROOMS for path in _modules(room) if path.stem != "__init__"]
    assert sorted(set(names) & set(sys.stdlib_module_names)) == []


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(REPOSITORY)): lines
        for folder in (*ROOMS, "src/laggard")
        for path in _modules(folder)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert long == {}
