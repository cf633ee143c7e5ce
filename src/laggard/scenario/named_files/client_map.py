"""Samples of each client, from a CSV file of the scenario.

The columns are `client` and `sample`. A client is a worker's number, or the name of its host.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from laggard.core.corrections.names import suggest_name
from laggard.core.errors import InputError, ScenarioError
from laggard.core.files.csv_rows import read_csv_rows
from laggard.core.hosts import Host
from laggard.core.yaml_source import KeyPath, YamlSource
from laggard.workloads.plan import place
from laggard.workloads.specification.stream import Births
from laggard.workloads.workload import Workload

MAX_SAMPLES = 10_000_000
_COLUMNS = "write client,sample in the first line, and for example edge.trainer.1.1,0 in the others"


def resolve_births(
    workload: Workload, hosts: Sequence[Host], csv_files: Mapping[str, bytes], source: YamlSource
) -> Workload:
    """Return the workload with the owner of each sample instead of the name of a file.

    Without the file, which is a problem of its own, samples are divided evenly.

    Args:
        workload: workload whose placement is valid.
        hosts: all hosts of the continuum.
        csv_files: content of the scenario's CSV files by name.
        source: places of keys of `workload.yaml`.

    Raises:
        ScenarioError: a file is no map of clients.
    """
    ranks = [host.name for host in place(workload.placement, hosts)]

    def resolve(births: Births | None, key: KeyPath) -> Births | None:
        if births is None or births.clients is None:
            return births
        if births.clients not in csv_files:
            return None
        try:
            owners = parse_owners(csv_files[births.clients], births.clients, ranks)
        except InputError as error:
            rule, _, fix = str(error).partition(" — ")
            raise ScenarioError((source.locate_problem(key, rule, fix),)) from error
        return Births(owners=owners)

    resolved: dict[str, object] = {"births": resolve(workload.births, ("births", "clients"))}
    if workload.stream is not None:
        births = resolve(workload.stream.births, ("stream", "births", "clients"))
        resolved["stream"] = workload.stream.model_copy(update={"births": births})
    return workload.model_copy(update=resolved)


def list_client_maps(workload: Workload) -> Iterator[tuple[str, KeyPath]]:
    """Yield the file of each map of clients, and the key that names it."""
    of_stream = None if workload.stream is None else workload.stream.births
    for births, place_ in ((workload.births, ()), (of_stream, ("stream",))):
        if births is not None and births.clients is not None:
            yield births.clients, (*place_, "births", "clients")


def parse_owners(data: bytes, name: str, ranks: Sequence[str]) -> tuple[int, ...]:
    """Return the number of the worker that has each sample; -1 for samples that nobody has.

    Args:
        data: content of the file.
        name: name of the file in messages.
        ranks: host of each worker.

    Raises:
        InputError: the content is no map of clients; with the line.
    """
    owners: dict[int, int] = {}
    for line, row in read_csv_rows(data, name, ("client", "sample"), _COLUMNS):
        try:
            _add_row(owners, row["client"], row["sample"], ranks)
        except InputError as error:
            raise InputError(f"{name}:{line}: {error}") from error
    if not owners:
        raise InputError(f"{name}: has no sample — {_COLUMNS}")
    return tuple(owners.get(number, -1) for number in range(max(owners) + 1))


def _add_row(owners: dict[int, int], client: str, sample: str, ranks: Sequence[str]) -> None:
    number = _parse_sample(sample)
    if number in owners:
        raise InputError(f"sample {number} has two clients — keep one of them")
    owners[number] = _parse_client(client, ranks)


def _parse_sample(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 8 and int(text) < MAX_SAMPLES):
        raise InputError(
            f"{text!r} is no number of a sample — give one from 0 to {MAX_SAMPLES - 1}"
        )
    return int(text)


def _parse_client(text: str, ranks: Sequence[str]) -> int:
    """Return the number of a worker that a map names."""
    if text.isascii() and text.isdigit() and len(text) <= 7:
        if int(text) >= len(ranks):
            raise InputError(
                f"there is no client {text} — give a number from 0 to {len(ranks) - 1}"
            )
        return int(text)
    own = [rank for rank, host in enumerate(ranks) if host == text]
    if not own:
        raise InputError(f"no client is on a host {text!r} — {suggest_name(text, ranks)}")
    if len(own) > 1:
        raise InputError(
            f"{len(own)} clients are on the host {text} — give their numbers, {own[0]} to {own[-1]}"
        )
    return own[0]
