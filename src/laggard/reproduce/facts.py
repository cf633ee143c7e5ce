"""Facts that made a run, and how those of two runs differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from laggard.core.run_schema import RunRecord

_EXACT_VERSIONS = ("python", "glibc", "laggard", "torch", "numpy", "scikit-learn")
"""Packages whose arithmetic or random numbers the losses depend on."""

_EXACT_HARDWARE = ("cpu", "cores", "gpu")
_NONE = "none"


@dataclass(frozen=True)
class FactDifference:
    """Fact that differs between two runs.

    Attributes:
        name: name of the fact.
        original: value of the original.
        reproduction: value of the reproduction.
    """

    name: str
    original: str
    reproduction: str


def compare_facts(
    original: RunRecord, reproduction: RunRecord, folders: tuple[Path, Path]
) -> tuple[FactDifference, ...]:
    """Return all facts that differ.

    Args:
        original: record of the original.
        reproduction: record of the reproduction.
        folders: run folders of both, whose scenario files are compared.
    """
    values = [dict(_list_facts(record)) for record in (original, reproduction)]
    names = dict.fromkeys([*values[0], *values[1]])
    files = [_read_scenario(folder / "scenario") for folder in folders]
    changed = sorted(
        name for name in {**files[0], **files[1]} if files[0].get(name) != files[1].get(name)
    )
    found = [
        FactDifference(name, values[0].get(name, _NONE), values[1].get(name, _NONE))
        for name in names
        if values[0].get(name, _NONE) != values[1].get(name, _NONE)
    ]
    found += [FactDifference(f"scenario/{name}", "as given", "changed") for name in changed]
    return tuple(found)


def find_inexact_reasons(original: RunRecord, reproduction: RunRecord) -> Sequence[str]:
    """Return why the losses need not be equal bit for bit; nothing if they must be."""
    reasons = []
    for record in (original, reproduction):
        strategy = record.strategy
        if strategy.name != "allreduce":
            reasons.append(f"the strategy {strategy.name} depends on the order of messages")
        elif strategy.parameters.get("balanced_batches") is not None:
            reasons.append("balanced batches depend on measured speeds")
        elif strategy.parameters.get("compress") is not None:
            reasons.append("gradients are compressed")
        if record.churn or record.lost_ranks:
            reasons.append("workers left or joined")
    if original.seed != reproduction.seed:
        reasons.append("the seeds differ")
    versions = original.versions, reproduction.versions
    reasons += [
        f"the versions of {name} differ"
        for name in _EXACT_VERSIONS
        if versions[0].get(name) != versions[1].get(name)
    ]
    mine, other = (_list_hardware(record) for record in (original, reproduction))
    if mine != other:
        reasons.append("the processors differ")
    return tuple(dict.fromkeys(reasons))


def _list_hardware(record: RunRecord) -> set[tuple[str, ...]]:
    return {tuple(str(host.get(name)) for name in _EXACT_HARDWARE) for host in record.hosts}


def _list_facts(record: RunRecord) -> Iterator[tuple[str, str]]:
    for name, version in record.versions.items():
        yield f"version of {name}", version
    for each in record.repositories:
        for held in each.holds:
            # A diff is part of a commit's description here: `-dirty` says that there is one.
            yield f"git commit of {held}", each.commit
    if not record.repositories and record.git is not None:
        yield "git commit of scenario", record.git
    for i, host in enumerate(record.hosts):
        where = "this machine" if len(record.hosts) == 1 else f"host {i}"
        for key, value in host.items():
            if key != "machine":
                yield f"{key} of {where}", str(value)
    yield "testbed", record.testbed
    yield "backend of links", str(record.backend)
    yield "dilation", f"{record.dilation:g}"
    for key, seed in record.seeds.items():
        yield f"seed {key}", str(seed)
    if record.settings is not None:
        yield "fidelity policy", record.settings.fidelity
        yield "artifacts", str(record.settings.artifacts)
        yield "app_conf", str(record.settings.app_conf)


def _read_scenario(folder: Path) -> Mapping[str, bytes]:
    """Return the scenario's files; both folders were written by this program."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }
