"""Reader of a run, a campaign or a crate: its kind, its integrity, and copies of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

from laggard.core.errors import RunFolderError
from laggard.core.files.input_files import JsonDocument, parse_json
from laggard.core.files.output_files import make_folder, replace_file
from laggard.crate.crate_files import METADATA_FILE, RECORD_FILES, RESULTS_FILE
from laggard.crate.results_rows import CountedCell, parse_rows
from laggard.crate.source_tree import SourceTree, is_safe_name
from laggard.run_folder.store import RECORD_FILE

SourceKind = Literal["run", "campaign"]
_SCENARIO = "scenario/"


def find_kind(tree: SourceTree) -> SourceKind:
    """Return whether a tree is a run or a campaign.

    Raises:
        RunFolderError: it is neither.
    """
    names = tree.names()
    if RESULTS_FILE in names and RECORD_FILE not in names:
        return "campaign"
    if RECORD_FILE in names:
        return "run"
    what = "a crate of another program" if METADATA_FILE in names else "no run, campaign or crate"
    raise RunFolderError(
        f"{tree.path}: {what}: it has neither {RECORD_FILE} nor {RESULTS_FILE} — give a run folder,"
        " the folder of a campaign, or what `laggard export --crate` wrote"
    )


def copy_run(tree: SourceTree, prefix: str, target: Path) -> None:
    """Copy the record of a run, its scenario and its tables into a new folder.

    Args:
        tree: tree of the run or campaign.
        prefix: path of the run in the tree, with a slash at its end; empty for the root.
        target: new folder.

    Raises:
        FileReadError: a file cannot be read safely.
        RunFolderError: the run has no scenario, or a file is not the one that the crate describes.
    """
    hashes = _read_hashes(tree)
    names = _select_names(tree.names(), prefix)
    if prefix + RECORD_FILE not in names:
        raise RunFolderError(f"{tree.path}: {prefix}{RECORD_FILE} is missing — copy it again")
    if not any(name.startswith(f"{prefix}{_SCENARIO}") for name in names):
        raise RunFolderError(
            f"{tree.path}: {prefix}{_SCENARIO} is missing, so there is nothing to run again — give"
            " a run that `laggard run` made"
        )
    for name in names:
        parts = name.removeprefix(prefix).split("/")
        digest = hashlib.sha256()
        with replace_file(make_folder(target, *parts[:-1]) / parts[-1]) as file:
            for chunk in tree.iterate(name):
                digest.update(chunk)
                file.write(chunk)
        if hashes.get(name, digest.hexdigest()) != digest.hexdigest():
            raise RunFolderError(
                f"{tree.path}: {name} is not the file that {METADATA_FILE} describes: its SHA-256"
                " differs — the crate was changed or damaged; copy it again"
            )


def _select_names(names: Iterable[str], prefix: str) -> Sequence[str]:
    wanted = {prefix + name for name in RECORD_FILES}
    return sorted(
        name
        for name in names
        if is_safe_name(name) and (name in wanted or name.startswith(f"{prefix}{_SCENARIO}"))
    )


def read_campaign_rows(tree: SourceTree) -> Mapping[str, CountedCell]:
    """Return the rows of a campaign that are done, by the path of their run in a crate.

    Raises:
        RunFolderError: the table of results is not one.
    """
    rows = parse_rows(tree.read(RESULTS_FILE), f"{tree.path}: {RESULTS_FILE}")
    unsafe = [row.run for row in rows if "/" in row.run or not is_safe_name(row.run)]
    if unsafe:
        raise RunFolderError(
            f"{tree.path}: {RESULTS_FILE}: {unsafe[0]!r} is not the id of a run — copy it again"
        )
    return {f"runs/{row.run}/": row for row in rows}


def _read_hashes(tree: SourceTree) -> Mapping[str, str]:
    """Return the hashes of the files that the crate's metadata describes; none without metadata."""
    if METADATA_FILE not in tree.names():
        return {}
    try:
        document = parse_json(tree.read(METADATA_FILE))
        graph = document.get("@graph") if isinstance(document, dict) else None
    except (ValueError, RecursionError) as error:
        raise _make_metadata_error(tree, str(error)) from error
    if not isinstance(graph, list):
        raise _make_metadata_error(tree, "it has no @graph")
    found: dict[str, str] = {}
    for entity in graph:
        found |= _read_entity(entity)
    return found


def _read_entity(entity: JsonDocument) -> Mapping[str, str]:
    if not isinstance(entity, dict):
        return {}
    name, digest = entity.get("@id"), entity.get("sha256")
    if not isinstance(name, str) or not isinstance(digest, str):
        return {}
    return {unquote(name): digest}


def _make_metadata_error(tree: SourceTree, reason: str) -> RunFolderError:
    return RunFolderError(
        f"{tree.path}: {METADATA_FILE} is not the metadata of a crate: {reason} — copy it again"
    )
