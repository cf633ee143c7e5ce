"""Writer of crates, as a folder or as a zip file."""

from __future__ import annotations

import glob
import hashlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from laggard.core.errors import InputError
from laggard.core.files.input_files import CHUNK_BYTES, open_regular
from laggard.core.files.output_files import make_folder, replace_file
from laggard.crate.crate_files import (
    CAMPAIGN_FILES,
    CRATE_FILE,
    MAX_FILES,
    METADATA_FILE,
    RESULTS_FILE,
    list_run,
)
from laggard.crate.crate_metadata import CrateDescription, CrateFile, build_metadata
from laggard.crate.results_rows import CountedCell, read_rows
from laggard.crate.source_tree import is_safe_name
from laggard.run_folder.store import RECORD_FILE, find_run

MAX_ARCHIVE_BYTES = 2 << 30
"""Largest sum of the sizes of the files of an archive."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""Time of every file in an archive, so that the same files give the same bytes."""


def write_crate(source: str, runs: Path, out: Path | None, license_url: str | None) -> Path:
    """Write a crate of a run or a campaign.

    Args:
        source: folder of a campaign, or what `find_run` finds.
        runs: folder of the run folders.
        out: new folder, or a file that ends in `.zip`; by default `crate.zip` in the folder.
        license_url: URL of the license of the data.

    Returns:
        The folder or file.

    Raises:
        InputError: no run or campaign matches, the run has not ended, or the place is taken.
    """
    campaign = find_campaign(source, runs)
    folder = find_run(source, runs) if campaign is None else campaign
    description, paths = (
        _describe_run(folder) if campaign is None else _describe_campaign(folder, runs)
    )
    document = build_metadata(replace(description, license=license_url))
    metadata = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    target = folder / CRATE_FILE if out is None else out.parent.resolve() / out.name
    if target.suffix == ".zip":
        _require_archivable(target, description)
        target.parent.mkdir(parents=True, exist_ok=True)
        _write_archive(target, metadata, paths)
    else:
        _write_folder(target, metadata, paths)
    return target


def find_campaign(text: str, runs: Path) -> Path | None:
    """Return the folder of the campaign that a user means: a path, or a name; None if none is."""
    for folder in (Path(text), runs / "campaigns" / text):
        if text and (folder / RESULTS_FILE).is_file():
            return folder.resolve()
    return None


def _describe_run(folder: Path) -> tuple[CrateDescription, Mapping[str, Path]]:
    run = list_run(folder)
    paths = {name: folder / name for name in run.names}
    name = f"{run.record.scenario} {run.record.id}"
    return CrateDescription(name, (run,), _hash_files(paths)), paths


def _describe_campaign(folder: Path, runs: Path) -> tuple[CrateDescription, Mapping[str, Path]]:
    known = [name for name in CAMPAIGN_FILES if (folder / name).is_file()]
    paths = {name: folder / name for name in known if not (folder / name).is_symlink()}
    listed = []
    for row in read_rows(folder / RESULTS_FILE):
        run_folder = find_row(row, runs)
        if run_folder is None:
            continue
        run = list_run(run_folder, f"runs/{row.run}/", only_record=True)
        listed.append(run)
        paths |= {run.prefix + name: run_folder / name for name in run.names}
    if not listed:
        raise InputError(
            f"{folder}: no run of this campaign is there any more — give its folder of runs with"
            " --runs"
        )
    files = _hash_files(paths)
    return CrateDescription(folder.name, listed, files, campaign=known), paths


def find_row(row: CountedCell, runs: Path) -> Path | None:
    """Return the run folder of a row, which may have moved with all others; None if it is gone."""
    if not is_safe_name(row.run) or "/" in row.run:
        return None
    recorded = Path(row.folder) if row.folder else None
    for place in (recorded, *sorted(runs.glob(f"*/{glob.escape(row.run)}"))):
        if place is not None and place.name == row.run and (place / RECORD_FILE).is_file():
            return place.resolve()
    return None


def _hash_files(paths: Mapping[str, Path]) -> dict[str, CrateFile]:
    files = {}
    for name, path in paths.items():
        digest, size = hashlib.sha256(), 0
        for chunk in _read_parts(path):
            digest.update(chunk)
            size += len(chunk)
        files[name] = CrateFile(size, digest.hexdigest())
    return files


def _read_parts(path: Path) -> Iterator[bytes]:
    with open_regular(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk


def _require_archivable(target: Path, description: CrateDescription) -> None:
    """Refuse an archive that `open_source` would not read."""
    count = len(description.files) + 1
    size = sum(file.size for file in description.files.values())
    if count > MAX_FILES or size > MAX_ARCHIVE_BYTES:
        raise InputError(
            f"{target}: {count} files of {size} bytes, and an archive has at most {MAX_FILES} files"
            f" and {MAX_ARCHIVE_BYTES} bytes — give a folder with --out"
        )


def _write_archive(target: Path, metadata: bytes, paths: Mapping[str, Path]) -> None:
    with replace_file(target) as file, zipfile.ZipFile(file, "w") as archive:
        with _open_entry(archive, METADATA_FILE) as entry:
            entry.write(metadata)
        for name, path in sorted(paths.items()):
            with _open_entry(archive, name) as entry:
                for chunk in _read_parts(path):
                    entry.write(chunk)


def _open_entry(archive: zipfile.ZipFile, name: str) -> BinaryIO:
    file = zipfile.ZipInfo(name, _EPOCH)
    file.compress_type = zipfile.ZIP_DEFLATED
    file.external_attr = 0o100644 << 16
    return archive.open(file, "w")  # type: ignore[return-value]  # a writable stream of bytes


def _write_folder(target: Path, metadata: bytes, paths: Mapping[str, Path]) -> None:
    if target.exists() and (not target.is_dir() or list(target.iterdir())):
        raise InputError(
            f"{target}: this exists, and a crate is written into a new or empty folder — choose"
            " another place with --out, or a file that ends in .zip"
        )
    make_folder(target)
    with replace_file(target / METADATA_FILE) as file:
        file.write(metadata)
    for name, path in paths.items():
        parts = name.split("/")
        with replace_file(make_folder(target, *parts[:-1]) / parts[-1]) as file:
            for chunk in _read_parts(path):
                file.write(chunk)
