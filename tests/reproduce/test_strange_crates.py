"""Crates of strangers: refused with a message, nothing started, nothing written elsewhere."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from laggard.cli.main import main
from laggard.crate import source_tree, write_crate
from tests.reproduce.originals import Again, make_original, stand_in

Spoil = Callable[[Path], object]


def rewrite(**changes: bytes | None) -> Spoil:
    """Replace entries of an archive; None removes one."""

    def spoil(path: Path) -> None:
        with zipfile.ZipFile(path) as old:
            files = {name: old.read(name) for name in old.namelist()}
        files |= {name: data for name, data in changes.items() if data is not None}
        removed = {name for name, data in changes.items() if data is None}
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as new:
            for name, data in files.items():
                if not any(name.startswith(each) for each in removed):
                    new.writestr(name, data)

    return spoil


def add_entry(name: str, mode: int = 0o100644, data: bytes = b"x") -> Spoil:
    def spoil(path: Path) -> None:
        entry = zipfile.ZipInfo(name)
        entry.external_attr = mode << 16
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr(entry, data)

    return spoil


def add_many(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        for i in range(source_tree.MAX_FILES + 1):
            archive.writestr(f"many/{i}", b"")


def state_a_huge_size(path: Path) -> None:
    """A bomb: the directory of the archive states 4 GiB for each of some files."""
    with zipfile.ZipFile(path, "a") as archive:
        for i in range(3):
            archive.writestr(f"bomb/{i}", b"x" * 77)
    data = path.read_bytes()
    size = (77).to_bytes(4, "little")
    start = data.rindex(b"PK\x01\x02" + data[data.rindex(b"PK\x01\x02") + 4 :][:4])
    first = data.index(b"bomb/0", data.index(b"PK\x01\x02")) - 46
    assert first <= start
    path.write_bytes(data[:first] + data[first:].replace(size, b"\xfe\xff\xff\xff"))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-400])


def damage_table(path: Path) -> None:
    data = bytearray(path.read_bytes())
    at = data.index(b"run.json") + 60
    data[at : at + 20] = bytes(20)
    path.write_bytes(data)


METADATA = "ro-crate-metadata.json"
SPOILED: dict[str, tuple[Spoil, str]] = {
    "truncated": (truncate, "zip archive"),
    "text": (lambda path: path.write_bytes(b"no archive" * 9), "neither a folder nor a zip"),
    "empty": (lambda path: path.write_bytes(b""), "neither a folder nor a zip"),
    "damaged": (damage_table, "run.json"),
    "out of its folder": (add_entry("../evil"), ".."),
    "absolute": (add_entry("/etc/evil"), "absolute"),
    "link": (add_entry("evil", 0o120777), "a symbolic link"),
    "pipe": (add_entry("evil", 0o010644), "a named pipe"),
    "many files": (add_many, "entries"),
    "bomb": (state_a_huge_size, "are the limit"),
    "large record": (rewrite(**{"run.json": b" " * (65 << 20)}), "run.json"),
    "no record": (rewrite(**{"run.json": None}), "crate of another program"),
    "no scenario": (rewrite(**{"scenario/": None}), "nothing to run again"),
    "metadata is text": (rewrite(**{METADATA: b"{"}), "not the metadata of a crate"),
    "metadata is a list": (rewrite(**{METADATA: b"[]"}), "no @graph"),
    "deep metadata": (rewrite(**{METADATA: b"[" * 99999}), "not the metadata of a crate"),
    "changed file": (rewrite(**{"scenario/network.yaml": b"networks: []\n"}), "SHA-256"),
    "foreign record": (rewrite(**{"run.json": b'{"a": 1}', METADATA: b'{"@graph": []}'}), "record"),
    "invalid scenario": (
        rewrite(**{"scenario/workload.yaml": b"modell: x\n", METADATA: b'{"@graph": [1]}'}),
        "workload.yaml",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_original(tmp_path_factory.mktemp("strange") / "runs")


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("spoiled", SPOILED)
def test_an_archive_is_refused(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoiled: str
) -> None:
    spoil, words = SPOILED[spoiled]
    again = stand_in(monkeypatch, Again(original))
    monkeypatch.chdir(tmp_path)
    crate = tmp_path / "crate.zip"
    assert _run("export", original, "--crate", "--out", crate).exit_code == 0
    spoil(crate)
    refused = _run("reproduce", crate, "--runs", tmp_path / "runs")
    assert refused.exit_code == 2, refused.output
    assert words in refused.output
    assert "Traceback" not in refused.output
    assert again.started == []
    assert not list((tmp_path / "runs").glob("*"))
    assert not list((tmp_path / "runs").glob(".*"))


@pytest.mark.parametrize("name", ["run.json", "scenario", "scenario/network.yaml", "steps.parquet"])
def test_a_link_in_a_folder_is_not_followed(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    again = stand_in(monkeypatch, Again(original))
    crate = tmp_path / "crate"
    assert _run("export", original, "--crate", "--out", crate).exit_code == 0
    target = crate / name
    shutil.move(target, tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    refused = _run("reproduce", crate, "--runs", tmp_path / "runs")
    if name == "steps.parquet":
        # A table that is not there is like one of a run that was killed.
        assert refused.exit_code == 1
        return
    assert (refused.exit_code, again.started) == (2, []), refused.output
    assert "Traceback" not in refused.output


def test_a_pipe_in_a_folder_is_not_read(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(monkeypatch, Again(original))
    crate = tmp_path / "crate"
    assert _run("export", original, "--crate", "--out", crate).exit_code == 0
    (crate / "steps.parquet").unlink()
    os.mkfifo(crate / "steps.parquet")
    refused = _run("reproduce", crate, "--runs", tmp_path / "runs")
    assert refused.exit_code == 2
    assert "a named pipe" in refused.output


def test_a_crate_is_written_only_into_an_empty_place(original: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    refused = _run("export", original, "--crate", "--out", tmp_path)
    assert (refused.exit_code, (tmp_path / "kept").read_text()) == (2, "mine")
    assert _run("export", original).exit_code == 2
    assert _run("export", original, "--crate", "--format", "csv").exit_code == 2


def test_an_archive_that_could_not_be_read_is_not_written(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_crate, "MAX_ARCHIVE_BYTES", 1000)
    refused = _run("export", original, "--crate", "--out", tmp_path / "c.zip")
    assert (refused.exit_code, list(tmp_path.iterdir())) == (2, [])
    assert "give a folder with --out" in refused.output


def test_equal_files_give_equal_archives(original: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "a.zip", tmp_path / "b.zip"]
    for path in paths:
        assert _run("export", original, "--crate", "--out", path).exit_code == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with zipfile.ZipFile(paths[0]) as archive:
        document = json.loads(archive.read(METADATA))
        assert {each["@id"] for each in document["@graph"]} >= set(archive.namelist())


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
