"""Lives of machines that may be revoked: entries of `churn` that are drawn from observed lives.

Each host has random numbers of its own, from the workload's seed and its name, so that the lives of
one do not depend on how many others there are.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from laggard.core.corrections.host_patterns import check_pattern
from laggard.core.errors import InputError, Problem, ScenarioError
from laggard.core.hosts import MAX_RULES, Host, select_hosts
from laggard.core.revocation.lifetimes import Lifetimes
from laggard.core.revocation.lifetimes_file import parse_lifetimes
from laggard.core.yaml_source import YamlSource
from laggard.workloads.plan import place
from laggard.workloads.specification.churn import ChurnEntry, DrawnChurn
from laggard.workloads.validate import DEFAULT_HORIZON_S
from laggard.workloads.workload import Workload


def resolve_churn(
    workload: Workload, hosts: Sequence[Host], csv_files: Mapping[str, bytes], source: YamlSource
) -> Workload:
    """Return the workload with entries instead of observed lives.

    Without the file of lives, which is a problem of its own, there are no entries.

    Args:
        workload: workload whose placement is valid.
        hosts: all hosts of the continuum.
        csv_files: content of the scenario's CSV files by name.
        source: places of keys of `workload.yaml`.

    Raises:
        ScenarioError: the file has no lives, the pattern matches no host, or there are too many
            revocations.
    """
    drawn = workload.churn
    if not isinstance(drawn, DrawnChurn):
        return workload
    if drawn.lifetimes not in csv_files:
        return workload.model_copy(update={"churn": ()})
    if problems := tuple(check_pattern(source, ("churn", "hosts"), drawn.hosts, hosts)):
        raise ScenarioError(problems)
    name = str(Path(source.path).with_name(drawn.lifetimes))
    try:
        lives = parse_lifetimes(csv_files[drawn.lifetimes], name)
    except InputError as error:
        rule, _, fix = str(error).partition(" — ")
        raise ScenarioError((source.locate_problem(("churn", "lifetimes"), rule, fix),)) from error
    workers = tuple(dict.fromkeys(place(workload.placement, hosts)))
    horizon_s = workload.stop.time_s or DEFAULT_HORIZON_S
    entries = tuple(_take(draw_entries(drawn, lives, hosts, workers, workload.seed, horizon_s)))
    if len(entries) > MAX_RULES:
        raise ScenarioError((_find_too_many(source, entries[-1].at_s, horizon_s),))
    return workload.model_copy(update={"churn": entries})


@dataclass(order=True)
class _Machine:
    """A host's machine, ordered by its next turn.

    Attributes:
        at_s: seconds until it is revoked, or until a new one joins.
        host: name of the host.
        joins: whether a new one joins then.
        rng: random numbers of the host.
    """

    at_s: float
    host: str
    joins: bool = field(compare=False)
    rng: random.Random = field(compare=False)


def draw_entries(
    drawn: DrawnChurn,
    lives: Lifetimes,
    hosts: Sequence[Host],
    workers: Sequence[Host],
    seed: int,
    horizon_s: float,
) -> Iterator[ChurnEntry]:
    """Yield revocations and arrivals in the order of time.

    The machine of the last worker that is present is not revoked. Its next life begins when another
    one joins.

    Args:
        drawn: which hosts, and how their lives are drawn.
        lives: observed lives.
        hosts: all hosts of the continuum.
        workers: hosts that train.
        seed: seed of the draw.
        horizon_s: seconds after which nothing is drawn.
    """
    present = {host.name for host in workers}
    revocable = [host.name for host in select_hosts(drawn.hosts, hosts) if host.name in present]

    def live(rng: random.Random) -> float:
        return lives.draw_life(rng) / drawn.faster

    queue = []
    for name in revocable:
        rng = random.Random(f"{seed} {name}")  # noqa: S311 - lives, not secrets
        queue.append(_Machine(live(rng), name, joins=False, rng=rng))
    heapq.heapify(queue)
    while queue and queue[0].at_s < horizon_s:
        machine = heapq.heappop(queue)
        name = machine.host
        if machine.joins:
            present.add(name)
            yield ChurnEntry.model_validate({"at": machine.at_s, "joins": name})
            machine.joins, machine.at_s = False, machine.at_s + live(machine.rng)
        elif present == {name}:
            # All others that come back are in the queue, and the first of them ends its duty.
            if not queue:
                return
            machine.at_s = queue[0].at_s + live(machine.rng)
        else:
            present.remove(name)
            yield ChurnEntry.model_validate({"at": machine.at_s, "leaves": name})
            if drawn.back_after_s is None:
                continue
            machine.joins, machine.at_s = True, machine.at_s + drawn.back_after_s
        heapq.heappush(queue, machine)


def _take(entries: Iterator[ChurnEntry]) -> Iterator[ChurnEntry]:
    """Yield one entry more than are allowed at most."""
    for _, entry in zip(range(MAX_RULES + 1), entries, strict=False):
        yield entry


def _find_too_many(source: YamlSource, last_s: float, horizon_s: float) -> Problem:
    return source.locate_problem(
        ("churn",),
        f"more than {MAX_RULES} revocations and arrivals within {last_s:g} of {horizon_s:g} s",
        "give a shorter stop.time, fewer hosts, or a smaller `faster`",
        value="churn",
    )
