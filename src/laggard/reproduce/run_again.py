"""A run of the copied scenario of an original, with the original's options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.analysis.reproduction.compare_pair import JudgedRun, Judgment, compare_pair
from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.core.errors import DeploymentError, InputError, RunFolderError
from laggard.core.files.input_files import read_json
from laggard.core.run_schema import Finding, RunRecord, RunSettings
from laggard.reproduce.facts import FactDifference, compare_facts, find_inexact_reasons
from laggard.run_folder.store import load_record

TOLERANCE = 0.05
"""Relative difference in time that two runs of one setup may have, by default."""


@dataclass(frozen=True)
class AgainOptions:
    """Options of a reproduction.

    Attributes:
        runs: folder of the run folders.
        trusted: whether programs of the scenario may run.
        tolerance: relative difference that runs of one setup may have.
        extra: further options of `laggard run`.
    """

    runs: Path
    trusted: bool = False
    tolerance: float = TOLERANCE
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReproducedRun:
    """Comparison of an original with its reproduction.

    Attributes:
        label: name of the original.
        original: record of the original.
        reproduction: record of the reproduction.
        folder: run folder of the reproduction.
        facts: facts that differ.
        inexact: why the losses need not be equal bit for bit; empty if they must be.
        judgments: judgment of every quantity.
    """

    label: str
    original: RunRecord
    reproduction: RunRecord
    folder: Path
    facts: tuple[FactDifference, ...]
    inexact: tuple[str, ...]
    judgments: tuple[Judgment, ...]

    @property
    def agrees(self) -> bool:
        """Return whether the runs agree in every quantity."""
        return all(each.agrees for each in self.judgments)


def start_again(record: RunRecord, scenario: Path, options: AgainOptions, *, own: bool) -> Path:
    """Run a scenario with the options of its original, in a process of its own.

    Args:
        record: record of the original.
        scenario: copy of its scenario.
        options: options of the reproduction.
        own: whether the original is the user's own, so that its folder of artifacts is used.

    Returns:
        The run folder.

    Raises:
        InputError: the original ran on another testbed, and no option selects one.
        DeploymentError: the run could not be started.
    """
    settings = record.settings or RunSettings()
    command = ["run", *_list_options(record, settings, options.extra, own=own)]
    done = run_in_subprocess(
        scenario, (), options.runs, command=command, fidelity=settings.fidelity
    )
    folder = None if done.result is None else done.result.get("folder")
    if not isinstance(folder, str):
        reason = "" if done.result is None else f": {done.result.get('error')}"
        raise DeploymentError(
            f"the reproduction of {record.scenario} {record.id} was not started (status"
            f" {done.status}){reason} — `laggard run` options can be given after `--`"
        )
    return Path(folder)


def _list_options(
    record: RunRecord, settings: RunSettings, extra: Sequence[str], *, own: bool
) -> Sequence[str]:
    elsewhere = any(each == "--on" or each.startswith("--on=") for each in extra)
    if record.testbed != "local" and not elsewhere:
        raise InputError(
            f"{record.id}: this run was made on the testbed {record.testbed}, whose options are"
            f" not known here — give them after `--`, such as `-- --on {record.testbed}`, or"
            " `-- --on local`"
        )
    options = []
    if not elsewhere:
        options += ["--links", settings.links]
        options += [] if settings.dilation is None else ["--dilation", f"{settings.dilation:g}"]
    options += [] if settings.app_conf is None else [f"--app-conf={settings.app_conf}"]
    options += [f"--for={settings.for_s:g}s"] if settings.for_s else []
    options += [] if settings.report else ["--no-report"]
    if own and settings.artifacts is not None:
        options.append(f"--artifacts={settings.artifacts}")
    return (*options, *extra)


def compare_again(
    label: str, original: Path, reproduction: Path, tolerance: float
) -> ReproducedRun:
    """Compare the folders of an original and its reproduction.

    Args:
        label: name of the original.
        original: run folder of the original.
        reproduction: run folder of the reproduction.
        tolerance: relative difference that runs of one setup may have.

    Raises:
        RunFolderError: a folder is damaged.
    """
    records = load_record(original), load_record(reproduction)
    inexact = tuple(find_inexact_reasons(*records))
    judged = compare_pair(
        _load(original), _load(reproduction), exact=not inexact, tolerance=tolerance
    )
    return ReproducedRun(
        label,
        *records,
        reproduction,
        compare_facts(*records, (original, reproduction)),
        inexact,
        (_judge_status(*records), *judged),
    )


def _judge_status(original: RunRecord, reproduction: RunRecord) -> Judgment:
    mine, other = original.status, reproduction.status
    error = f": {reproduction.error}" if reproduction.error and other != mine else ""
    note = ""
    if "unfaithful" in {mine, other}:
        note = "; times of an unfaithful run are not those of the requested continuum"
    return Judgment("status", other in {mine, "done"}, f"{mine} and {other}{error}{note}")


def _load(folder: Path) -> JudgedRun:
    from laggard.analysis.tables.load_run import load_run

    return JudgedRun(load_run(folder), _load_findings(folder / "stragglers.json"))


def _load_findings(path: Path) -> tuple[Finding, ...]:
    from pydantic import TypeAdapter

    if not path.exists():
        return ()
    try:
        return TypeAdapter(tuple[Finding, ...]).validate_python(read_json(path))
    except ValueError as error:
        raise RunFolderError(f"{path}: not a list of findings — copy it again") from error
