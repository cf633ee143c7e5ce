"""Metadata of a crate: RO-Crate 1.1 with the profile Process Run Crate 0.5.

That is the profile of the Workflow Run RO-Crate collection for executions of a program, here of
`laggard run`: one `CreateAction` a run, whose objects are the scenario's files and its results the
files that it wrote (https://w3id.org/ro/wfrun/process/0.5).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from laggard.core.run_schema import RunRecord
from laggard.crate.crate_files import CratedRun

if TYPE_CHECKING:
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

ROCRATE_VERSION = "1.1"
PROFILE_VERSION = "0.5"
PROFILE = f"https://w3id.org/ro/wfrun/process/{PROFILE_VERSION}"
_TERMS = {"sha256": "https://w3id.org/ro/terms/workflow-run#sha256"}
_FORMATS = {
    ".csv": "text/csv",
    ".diff": "text/x-diff",
    ".gz": "application/gzip",
    ".html": "text/html",
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".parquet": "application/vnd.apache.parquet",
    ".pdf": "application/pdf",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".yaml": "application/yaml",
}
_NO_LICENSE = "No license is stated; ask the authors before you use this data."


@dataclass(frozen=True)
class CrateFile:
    """Size and hash of a file of a crate."""

    size: int
    sha256: str


@dataclass(frozen=True)
class CrateDescription:
    """Content of a crate.

    Attributes:
        name: name of the run or campaign.
        runs: all runs.
        files: size and hash of every file, by its path.
        license: URL of the license of the data; None if none is stated.
        campaign: paths of the files of a campaign; empty for a run.
    """

    name: str
    runs: Sequence[CratedRun]
    files: Mapping[str, CrateFile]
    license: str | None = None
    campaign: Sequence[str] = ()


def build_metadata(description: CrateDescription) -> dict[str, object]:
    """Build the content of `ro-crate-metadata.json`."""
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version=ROCRATE_VERSION)
    crate.metadata.extra_terms.update(_TERMS)
    _describe_root(crate, description)
    for path, file in description.files.items():
        properties = {
            "name": PurePosixPath(path).name,
            "contentSize": str(file.size),
            "sha256": file.sha256,
        }
        encoding = _FORMATS.get(PurePosixPath(path).suffix)
        if encoding is not None:
            properties["encodingFormat"] = encoding
        # The entity only describes the file; Laggard writes it (see `write_crate`).
        crate.add_file(dest_path=path, properties=properties, validate_url=False)
    actions = [_add_run(crate, run) for run in description.runs]
    if description.campaign:
        actions.insert(0, _add_campaign(crate, description))
    crate.root_dataset["mentions"] = _unwrap(actions)
    document: dict[str, object] = crate.metadata.generate()
    return document


def _describe_root(crate: ROCrate, description: CrateDescription) -> None:
    kind = "campaign" if description.campaign else "run"
    profile = crate.add(
        _make_entity(
            crate, PROFILE, "CreativeWork", name="Process Run Crate", version=PROFILE_VERSION
        )
    )
    root = crate.root_dataset
    root["conformsTo"] = profile
    root["name"] = f"{kind.capitalize()} {description.name} of Laggard"
    root["description"] = (
        f"A {kind} of Laggard, which trains deep networks across an emulated edge-fog-cloud"
        " continuum and finds what slows them down: scenario files, records and results. RO-Crate"
        f" {ROCRATE_VERSION} with the profile Process Run Crate {PROFILE_VERSION}."
    )
    stated = description.license
    root["license"] = crate.add(
        _make_entity(crate, "#no-license", "CreativeWork", name="none", description=_NO_LICENSE)
        if stated is None
        else _make_entity(crate, stated, "CreativeWork", name=stated, url=stated)
    )
    ended = [_parse_time(run.record) for run in description.runs]
    root["datePublished"] = max(ended, default=datetime.now(UTC)).isoformat(timespec="seconds")


def _make_entity(
    crate: ROCrate, identifier: str, kind: str, /, **properties: object
) -> ContextEntity:
    from rocrate.model.contextentity import ContextEntity

    values = {name: _unwrap(value) for name, value in properties.items()}
    return ContextEntity(crate, identifier, properties={"@type": kind, **values})


def _unwrap(value: object) -> object:
    """Return the only value of a list of one, as RO-Crate 1.1 recommends."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _add_run(crate: ROCrate, run: CratedRun) -> ContextEntity:
    record = run.record
    ok = record.status == "done"
    properties: dict[str, object] = {
        "name": f"Run {record.id} of the scenario {record.scenario}",
        "description": f"command: {' '.join(record.command) or 'unknown'}",
        "startTime": record.started,
        "endTime": _parse_time(record).isoformat(timespec="seconds"),
        "actionStatus": f"http://schema.org/{'Completed' if ok else 'Failed'}ActionStatus",
        "instrument": _add_programs(crate, record.versions),
        "object": [crate.get(path) for path in run.inputs] + _add_seeds(crate, record),
        "result": [crate.get(path) for path in run.outputs],
    }
    if not ok:
        properties["error"] = record.error or f"the run is {record.status}"
    return crate.add(_make_entity(crate, f"#run-{record.id}", "CreateAction", **properties))


def _add_seeds(crate: ROCrate, record: RunRecord) -> list[ContextEntity]:
    seeds = record.seeds or {"workload.seed": record.seed}
    return [
        crate.add(
            _make_entity(
                crate,
                f"#seed-{record.id}-{name}",
                "PropertyValue",
                name=name,
                value=str(value),
            )
        )
        for name, value in seeds.items()
    ]


def _add_programs(crate: ROCrate, versions: Mapping[str, str]) -> ContextEntity:
    """Add Laggard and the packages that it needs, once per version."""
    needed = [
        _add_program(crate, name, version)
        for name, version in versions.items()
        if name != "laggard"
    ]
    laggard = _add_program(crate, "laggard", versions.get("laggard", "unknown"))
    if needed:
        laggard["softwareRequirements"] = _unwrap(needed)
    return laggard


def _add_program(crate: ROCrate, name: str, version: str) -> ContextEntity:
    identifier = f"https://pypi.org/project/{name}/{version}/"
    if name == "python":
        identifier = f"https://docs.python.org/release/{version}/"
    elif name in {"glibc", "libc"}:
        identifier = f"https://www.gnu.org/software/libc/#{version}"
    known = crate.get(identifier)
    if known is not None:
        return known
    return crate.add(
        _make_entity(
            crate,
            identifier,
            "SoftwareApplication",
            name=name,
            softwareVersion=version,
            url=identifier,
        )
    )


def _add_campaign(crate: ROCrate, description: CrateDescription) -> ContextEntity:
    inputs = [path for path in description.campaign if path.endswith(".yaml")]
    records = [run.record for run in description.runs]
    properties: dict[str, object] = {
        "name": f"Campaign {description.name}",
        "description": f"{len(records)} runs of one campaign file",
        "actionStatus": "http://schema.org/CompletedActionStatus",
        "instrument": _add_programs(crate, records[-1].versions if records else {}),
        "object": [crate.get(path) for path in inputs],
        "result": [crate.get(path) for path in description.campaign if path not in inputs],
    }
    if records:
        properties["startTime"] = min(record.started for record in records)
        ended = max(_parse_time(record) for record in records)
        properties["endTime"] = ended.isoformat(timespec="seconds")
    return crate.add(_make_entity(crate, "#campaign", "CreateAction", **properties))


def _parse_time(record: RunRecord) -> datetime:
    """Return the end of a run; an older record has only its start and the stages' durations."""
    try:
        if record.ended is not None:
            return datetime.fromisoformat(record.ended)
        started = datetime.fromisoformat(record.started)
        return started + timedelta(seconds=sum(stage.seconds for stage in record.stages))
    except (ValueError, OverflowError):
        return datetime.now(UTC)
