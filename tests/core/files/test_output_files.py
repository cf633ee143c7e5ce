"""The writer of output files: what stands in its way, and what must be true afterwards."""

from __future__ import annotations

import ast
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.core.errors import InputError
from laggard.core.files.output_files import (
    make_folder,
    replace_file,
    write_atomically,
    write_json,
    write_text,
)
from tests.test_names import REPOSITORY, _product_files


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user, outside the folder that is written to."""
    path = tmp_path / "precious"
    path.write_text("mine")
    (tmp_path / "run").mkdir()
    return path


def _bind(path: Path) -> None:
    # A socket's path is short, and that of a test may be long.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as it:
        it.bind(f"{folder}/s")
        Path(f"{folder}/s").rename(path)


ATTACKS: dict[str, tuple[Callable[[Path, Path], object], str]] = {
    "link": (lambda path, precious: path.symlink_to(precious), "a symbolic link"),
    "dangling link": (lambda path, _: path.symlink_to(path.parent / "none"), "a symbolic link"),
    "link to a device": (lambda path, _: path.symlink_to("/dev/null"), "a symbolic link"),
    "pipe": (lambda path, _: os.mkfifo(path), "a named pipe"),
    "socket": (lambda path, _: _bind(path), "a socket"),
    "folder": (lambda path, _: path.mkdir(), "a folder"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_only_regular_files_are_replaced(attack: str, precious: Path) -> None:
    target = precious.parent / "run" / "report.html"
    prepare, kind = ATTACKS[attack]
    prepare(target, precious)
    before = target.lstat()
    with pytest.raises(InputError, match=kind):
        write_text(target, "page")
    assert precious.read_text() == "mine"
    assert os.path.samestat(target.lstat(), before)
    assert [path.name for path in target.parent.iterdir()] == ["report.html"]


def test_a_linked_folder_is_refused(precious: Path) -> None:
    """Also one that `mkdir` accepts, as it exists."""
    outside = precious.parent / "outside"
    outside.mkdir()
    link = precious.parent / "run" / "figures"
    link.symlink_to(outside)
    for write in (
        lambda: write_text(link / "a.svg", "x"),
        lambda: make_folder(link.parent, "figures"),
    ):
        with pytest.raises(InputError, match="this folder is a symbolic link"):
            write()
    assert list(outside.iterdir()) == []


def test_a_hard_link_keeps_its_content(precious: Path) -> None:
    target = precious.parent / "run" / "report.html"
    target.hardlink_to(precious)
    write_text(target, "page")
    assert (target.read_text(), precious.read_text()) == ("page", "mine")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_keeps_the_old_file_and_leaves_no_other(
    precious: Path, error: BaseException
) -> None:
    with pytest.raises(type(error)), replace_file(precious) as file:  # noqa: PT012
        file.write(b"half")
        raise error
    assert precious.read_text() == "mine"
    assert sorted(path.name for path in precious.parent.iterdir()) == ["precious", "run"]


def test_an_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        write_text(tmp_path / "none" / "file", "x")
    assert caught.value.filename == str(tmp_path / "none")
    with pytest.raises(OSError, match="too long") as too_long:
        write_text(tmp_path / ("x" * 300), "x")
    assert too_long.value.filename == str(tmp_path / ("x" * 300))


def test_content_and_permissions(tmp_path: Path) -> None:
    write_json(tmp_path / "a", {"b": [1]})
    assert (tmp_path / "a").read_text() == '{\n "b": [\n  1\n ]\n}\n'
    write_atomically(tmp_path / "a", b"\x00")
    assert (tmp_path / "a").read_bytes() == b"\x00"
    write_text(tmp_path / "a", "ü\udcff", mode=0o600)
    assert (tmp_path / "a").read_bytes() == "ü\\udcff".encode()
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o600


# Each of these writes files that no stranger has prepared.
_OWN_FILES = {
    "layers_services/environment",  # runs alone on a node, or in its private cache
    "layers_services/local",  # the kernel's files and the sandbox's own /run
    "network_emulation",  # the kernel's files
    "layers_services/ssh/contained_files.py",  # files of nodes, opened inside a new run's folder
    "layers_services/ssh/fetch_files.py",  # the same files, once opened
    "layers_services/ssh/node_files.py",  # a program that runs on a node
    "src/laggard/core/emulated_drive.py",  # shared memory in a new run's folder
    "src/laggard/core/files/reserved_space.py",  # the reserve of a new run's folder
    "src/laggard/remote/agent",  # a new folder on a node
    "src/laggard/remote/agent_pool.py",  # logs of a new run
    "src/laggard/run/straggler_watcher.py",  # alarms of a new run, appended
    "workloads",  # a new run's folder of its workers
}


def _writes_in_place(call: ast.Call) -> bool:
    """Whether a call opens a file for writing, or hands a path to a library that does."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    name = method or getattr(call.func, "id", "")
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    modes = {str(each.value) for each in arguments if isinstance(each, ast.Constant)}
    # What the writer yields is named `file` everywhere; a figure may go to a buffer.
    if any(getattr(each, "id", "") in {"file", "buffer"} for each in arguments):
        return False
    if name in {"open", "fdopen"}:
        return any(set(mode) <= set("rwxabt+") and set(mode) & set("wxa+") for mode in modes)
    return method in {"write_text", "write_bytes", "touch"} or name in {
        "to_csv",
        "ParquetWriter",
        "savefig",
    }


def test_every_other_file_is_written_by_the_writer() -> None:
    """A new module that writes files itself is found here."""
    found = [
        f"{place}:{node.lineno}"
        for path in _product_files()
        if not (place := str(path.relative_to(REPOSITORY))).startswith(tuple(_OWN_FILES))
        and place != "src/laggard/core/files/output_files.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and _writes_in_place(node)
    ]
    assert found == []
