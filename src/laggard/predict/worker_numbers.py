"""Numbers of hosts of a tier, as the command line gives them, and the scenarios with them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from laggard.core.errors import InputError
from laggard.scenario.load import Scenario, load_scenario

MAX_HOSTS = 512
"""Largest number of hosts of a tier, whose links are all planned."""

_AT_MOST = 12
_NUMBERS = re.compile(r"(?:(?P<tier>[^=]+)=)?(?P<numbers>[0-9]+(?:\.\.[0-9]+|(?:,[0-9]+)*))")
_EXAMPLE = "write --workers edge=1..64, or --workers edge=4,8,16"


@dataclass(frozen=True)
class WorkerNumbers:
    """Numbers of hosts of a service.

    Attributes:
        tier: layer of the hosts, or layer and service such as `edge.trainer`; None if there is only
            one with workers.
        numbers: numbers of hosts, ascending.
    """

    tier: str | None
    numbers: tuple[int, ...]


def parse_worker_numbers(text: str) -> WorkerNumbers:
    """Parse `1..64`, `edge=1..64`, `edge=4,8,16` or `edge.trainer=8`.

    At most twelve numbers of a range are used, in equal ratios.

    Raises:
        InputError: the text is none of these, or a number is impossible.

    Examples:
        >>> parse_worker_numbers("edge=1..64").numbers
        (1, 2, 3, 5, 7, 10, 14, 20, 30, 44, 64)
    """
    found = _NUMBERS.fullmatch(text.strip())
    if found is None:
        raise InputError(f"--workers {text}: not numbers of workers — {_EXAMPLE}")
    low, is_range, high = found["numbers"].partition("..")
    numbers = [int(each) for each in found["numbers"].replace("..", ",").split(",")]
    wrong = next((each for each in numbers if not 1 <= each <= MAX_HOSTS), None)
    if wrong is not None:
        raise InputError(
            f"--workers {text}: {wrong} hosts, which must be 1 to {MAX_HOSTS} — for more, use"
            " `laggard.core.simulation.fleet`"
        )
    if is_range and int(low) > int(high):
        raise InputError(f"--workers {text}: {low} is more than {high} — write {high}..{low}")
    return WorkerNumbers(
        found["tier"], _spread(*numbers) if is_range else tuple(sorted({*numbers}))
    )


def load_with_numbers(
    folder: Path, overrides: Sequence[str], wanted: WorkerNumbers, samples: int | None = None
) -> Iterator[Scenario]:
    """Yield the scenario with each number of hosts.

    Args:
        folder: folder of the scenario.
        overrides: overrides of the command line.
        wanted: numbers of hosts.
        samples: samples of one worker in a step; the batch stays as it is if None.

    Raises:
        InputError: no service, or more than one, is meant.
        ScenarioError: the scenario is wrong with one of the numbers.
    """
    base = load_scenario(folder, overrides)
    layer, service = find_service(base, wanted.tier)
    key = f"layers_services.layers.{layer}.services.{service}.quantity"
    for number in wanted.numbers:
        own = [*overrides, f"{key}={number}"]
        if samples is not None:
            # The number of ranks is known from the scenario only, which must be valid before.
            roomy = load_scenario(folder, [*own, f"workload.batch_size={samples * 64 * MAX_HOSTS}"])
            own.append(f"workload.batch_size={samples * len(roomy.ranks)}")
        yield load_scenario(folder, own)


def find_service(scenario: Scenario, tier: str | None) -> tuple[int, int]:
    """Return the positions of a layer and of its service, from 0.

    Args:
        scenario: a loaded scenario that trains.
        tier: layer, or layer and service; None for the only service with workers.

    Raises:
        InputError: no service, or more than one, is meant.
    """
    ranks = {(rank.layer_id - 1, rank.service_id - 1): rank for rank in scenario.ranks}
    matching = {
        place: rank
        for place, rank in ranks.items()
        if tier in (None, rank.layer, f"{rank.layer}.{rank.service}")
    }
    if len(matching) == 1:
        return next(iter(matching))
    known = ", ".join(f"{rank.layer}.{rank.service}" for rank in ranks.values())
    if not matching:
        raise InputError(f"--workers {tier}=…: no workers are there — the workers are in {known}")
    raise InputError(
        f"--workers: workers are in {known} — say which of them varies, for example --workers"
        f" {known.partition(',')[0]}=1..16"
    )


def _spread(low: int, high: int) -> tuple[int, ...]:
    if high - low < _AT_MOST:
        return tuple(range(low, high + 1))
    spread = np.geomspace(low, high, _AT_MOST)
    return tuple(sorted({round(float(each)) for each in spread}))
