"""Reading within limits: what is refused, by name and without waiting."""

from __future__ import annotations

import gzip
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import (
    CHUNK_BYTES,
    expand_home,
    open_regular,
    parse_json,
    read_bounded,
    read_chunks,
    read_json,
)


def _bind(path: Path) -> None:
    # A socket's path is short, and that of a test may be long.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as it:
        it.bind(f"{folder}/s")
        Path(f"{folder}/s").rename(path)


ATTACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "a named pipe"),
    "socket": (_bind, "a socket"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "a character device"),
    "folder": (lambda path: path.mkdir(), "a folder"),
    "missing": (lambda _: None, "No such file"),
    "loop": (lambda path: path.symlink_to(path), "levels of symbolic links"),
    "large": (lambda path: path.write_bytes(b" " * 101), "larger than 100 bytes"),
    "endless": (lambda path: path.symlink_to("/proc/kcore"), ""),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_no_small_regular_file_is_refused(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    prepare, says = ATTACKS[attack]
    prepare(path)
    with pytest.raises(RunFolderError, match=f"{path}.*{says}"):
        read_bounded(path, 100)


@pytest.mark.parametrize("name", ["\0", "x" * 300, "a/" * 3000])
def test_impossible_paths_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="cannot be read"), open_regular(tmp_path / name):
        pass


@pytest.mark.parametrize("text", [
    "", "{", "nul", "[1,]", "NaN", "[-Infinity]", "1e999", "9" * 26, "-" + "9" * 5000, "[" * 100_000,
    '"\udcff"',
])  # fmt: skip
def test_what_is_no_json_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(RunFolderError, match="not a valid JSON document"):
        read_json(path)


def test_json_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(f'{{"a": [1, 2.5, null, "ü", {2**63}]}}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5, None, "ü", 2**63]}
    assert parse_json(b"1e300") == 1e300


def test_chunks_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x" * 100) * 2)
    assert b"".join(read_chunks(path, 200, gzipped=True)) == b"x" * 200
    with pytest.raises(RunFolderError, match=r"a\.gz: decompressed, larger than 199 bytes"):
        list(read_chunks(path, 199, gzipped=True))
    with pytest.raises(RunFolderError, match=r"a\.gz: larger than 10 bytes"):
        list(read_chunks(path, 10))
    # A bomb within a bomb: a gigabyte of zeros in a megabyte.
    path.write_bytes(gzip.compress(bytes(1 << 24), 9) * 64)
    with pytest.raises(RunFolderError, match="decompressed"):
        list(read_chunks(path, 1 << 20, gzipped=True))
    assert {len(chunk) for chunk in read_chunks(path, gzipped=True)} == {CHUNK_BYTES}


def test_an_unknown_user_has_no_home() -> None:
    assert expand_home("~nosuch-user/x") == Path("~nosuch-user/x")
    assert expand_home("~").is_absolute()
