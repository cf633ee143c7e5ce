"""The house: which part imports which, and what light commands must not import.

Every import counts, also one inside a function or under `TYPE_CHECKING`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "src/laggard"
ROOMS = ("layers_services", "network_emulation", "workloads", "analysis")
WALLS: Mapping[str, tuple[str, ...]] = {
    "laggard": (
        "core",
        "supervision",
        "scenario",
        "run_folder",
        "crate",
        "run",
        "remote/agent",
        "remote/testbeds",
        "remote",
        "emulate",
        "predict",
        "virtual",
        "flower",
        "inference",
        "campaign",
        "reproduce",
        "verify",
        "evaluate",
        "stalls",
        "jobs",
        "cli",
    ),
    "layers_services": (
        ".",
        "local",
        "local/connection_plugins",
        "ssh",
        "g5k",
        "iotlab",
        "chameleon",
        "e2clab",
        "environment",
    ),
    "network_emulation": (
        ".",
        "fidelity/probes",
        "links",
        "links/netem",
        "links/userspace",
        "compute",
        "storage",
        "memory",
        "dynamics",
        "fidelity",
    ),
    "workloads": (
        "specification",
        "output",
        "transport",
        "datasets",
        "clients",
        "streams",
        "models",
        "planning",
        "tracing",
        "compress",
        "balancing",
        "migration",
        "coordination",
        "strategies/base",
        "strategies/collective",
        "strategies/server",
        "strategies/federated",
        "strategies/peer",
        "strategies/background",
        "strategies/pipeline",
        "strategies",
        "scheduling",
        "gallery",
        ".",
        "serving",
        "inference",
    ),
    "analysis": (
        ".",
        "estimates",
        "tables",
        "tables/timelines",
        "cost_model",
        "formats/import_run",
        "formats/trace_json",
        "formats/bytedance",
        "formats/kineto",
        "formats/kineto/ranks",
        "formats/kineto/recording",
        "formats/horovod",
        "formats/flight_recorder",
        "formats/export",
        "formats",
        "detection",
        "detection/lockstep",
        "detection/online",
        "replay",
        "replay/lockstep",
        "replay/asynchronous",
        "replay/what_if",
        "replay/bytedance",
        "findings",
        "reproduction",
        "report/style",
        "report/timeline",
        "report/figures",
        "report",
        "campaign",
        "stalls",
        "evaluate/synthetic",
        "evaluate",
    ),
}
"""Folders of every part, lowest first: a folder imports itself and what stands before it."""

APPLICATION = tuple(part for part in WALLS["laggard"] if part != "core" and "/" not in part)
HEAVY = (
    "torch",
    "ortools",
    "enoslib",
    "e2clab",
    "ansible",
    "pandas",
    "pyarrow",
    "matplotlib",
    "sklearn",
    "scipy",
)


@cache
def _modules() -> Mapping[str, Path]:
    """Every product module by its dotted name; a package stands for its `__init__`."""
    roots = [(REPOSITORY / room, ("laggard", room)) for room in ROOMS]
    roots += [(PACKAGE / part, ("laggard", part)) for part in ("core", *APPLICATION)]
    found = {}
    for root, parts in roots:
        for path in sorted(root.rglob("*.py")):
            dotted = ".".join((*parts, *path.relative_to(root).with_suffix("").parts))
            found[dotted.removesuffix(".__init__")] = path
    return found


@cache
def _imports(path: Path) -> tuple[tuple[int, str], ...]:
    """Line and full name of everything that a file imports."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return tuple(found)


def _strings(path: Path) -> Iterator[tuple[int, str]]:
    """Names of modules in strings, as `importlib` and the fork server take them."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and re.fullmatch(
            r"laggard(\.\w+){2,}.*", str(node.value)
        ):
            yield node.lineno, str(node.value)


def _imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of every product module that a file imports."""
    for line, name in _imports(path):
        module = name if name in _modules() else name.rpartition(".")[0]
        if module in _modules():
            yield line, module


def _folder(module: str) -> str:
    """The dotted name of the folder that a module lies in."""
    return module if _modules()[module].name == "__init__.py" else module.rpartition(".")[0]


def _part(module: str) -> str:
    return module.split(".")[1]


def _format_place(path: Path, line: int, name: str) -> str:
    return f"{path.relative_to(REPOSITORY)}:{line}: {name}"


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_the_core_and_itself(room: str) -> None:
    modules = {name: path for name, path in _modules().items() if _part(name) == room}
    assert modules
    wrong = [
        _format_place(path, line, name)
        for path in modules.values()
        for line, name in (*_imports(path), *_strings(path))
        if name.split(".")[0] == "laggard" and _part(f"{name}.") not in ("", "core", room)
    ]
    assert wrong == []


def test_the_core_imports_itself_only() -> None:
    modules = {name: path for name, path in _modules().items() if _part(name) == "core"}
    assert modules
    wrong = [
        _format_place(path, line, name)
        for path in modules.values()
        for line, name in _imports(path)
        if name.split(".")[0] == "laggard" and _part(name) != "core"
    ]
    assert wrong == []


def test_imports_are_absolute_and_of_what_exists() -> None:
    wrong = [
        _format_place(path, line, name)
        for path in _modules().values()
        for line, name in _imports(path)
        if name.startswith(".")
        or name.split(".")[0] in (*ROOMS, "experiments")
        or (
            name.split(".")[0] == "laggard"
            and name not in ("laggard", "laggard.__version__")
            and not {name, name.rpartition(".")[0]} & _modules().keys()
        )
    ]
    assert wrong == []


def _find_wall(module: str) -> tuple[str, int]:
    """The part whose walls a module stands between, and the place of its folder there."""
    part = _part(module)
    order = WALLS["laggard" if part not in ROOMS else part]
    inside = _folder(module).split(".")[1:] if part not in ROOMS else _folder(module).split(".")[2:]
    place = "/".join(inside) or "."
    if part not in ROOMS and place not in order:
        place = inside[0]
    return ("laggard" if part not in ROOMS else part), order.index(place)


def test_no_import_points_back_up() -> None:
    wrong = []
    for module, path in _modules().items():
        part, own = _find_wall(module)
        for line, imported in _imported_modules(path):
            other_part, other = _find_wall(imported)
            if part == other_part and other > own:
                wrong.append(_format_place(path, line, imported))
    assert wrong == []


def _find_circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        circle: list[str] = error.args[1]
        return circle
    return []


def test_there_are_no_circles_between_modules_or_folders() -> None:
    modules = {
        name: {imported for _, imported in _imported_modules(path)} - {name}
        for name, path in _modules().items()
    }
    folders: dict[str, set[str]] = {}
    for name, imported in modules.items():
        folders.setdefault(_folder(name), set()).update(map(_folder, imported))
    assert _find_circle(modules) == []
    assert _find_circle({name: found - {name} for name, found in folders.items()}) == []


def _imported_by(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", code]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())


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
    names = {path.stem for path in _modules().values() if path.stem != "__init__"}
    assert sorted(names & set(sys.stdlib_module_names)) == []


def test_files_stay_small() -> None:
    long = {
        str(path.relative_to(REPOSITORY)): lines
        for path in _modules().values()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 500
    }
    assert long == {}
