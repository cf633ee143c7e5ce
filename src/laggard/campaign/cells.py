"""Cells of a campaign: every setup and repeat once, in the order in which they run. Pure."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from laggard.campaign.campaign_file import CampaignFile
from laggard.core.errors import InputError
from laggard.core.yaml_source import to_yaml

MAX_CELLS = 20_000
"""A table of more rows is no table that a person reads, and would run for months."""

_SHUFFLE_SEED = 0


@dataclass(frozen=True)
class CellSetup:
    """Combination of values that the repeats of a cell share.

    Attributes:
        scenario: folder of the scenario.
        variant: name of the set of values from `variants`; empty if there are none.
        varied: values of the axes.
        fixed: values that the variant sets.
        telling: axes that distinguish setups, because they have several values.
    """

    scenario: Path
    variant: str
    varied: Mapping[str, JsonValue]
    fixed: Mapping[str, JsonValue]
    telling: frozenset[str] = frozenset()

    def overrides(self) -> tuple[str, ...]:
        """Return the `--set` arguments."""
        values = {**self.fixed, **self.varied}
        return tuple(f"{key}={to_yaml(value)}" for key, value in sorted(values.items()))

    def label(self) -> str:
        """Return the text that identifies the setup in its campaign."""
        return to_canonical_json([str(self.scenario), self.variant, self.varied, self.fixed])


@dataclass(frozen=True)
class Cell:
    """One run of a campaign.

    Attributes:
        setup: its setup.
        setup_digest: digest of everything that makes its setup.
        repeat: number of the repeat, from 0.
        seed: seed of the workload; None if nothing is trained.
        sets_seed: whether the seed is an override.
        digest: digest of everything that makes the cell.
    """

    setup: CellSetup
    setup_digest: str
    repeat: int
    seed: int | None
    sets_seed: bool
    digest: str

    def overrides(self) -> tuple[str, ...]:
        """Return the `--set` arguments of the run."""
        own = (f"workload.seed={self.seed}",) if self.sets_seed else ()
        return (*self.setup.overrides(), *own)


@dataclass(frozen=True)
class CheckedSetup:
    """CellSetup whose scenario has been loaded.

    Attributes:
        setup: the setup.
        digest: digest of its scenario's files and of everything else that makes its runs.
        seed: seed of its workload; None if nothing is trained.
    """

    setup: CellSetup
    digest: str
    seed: int | None


def list_setups(campaign: CampaignFile) -> Sequence[CellSetup]:
    """Return every setup once, in the order of the file.

    Raises:
        InputError: there are none, or too many cells.
    """
    count = math.prod(
        [
            len(campaign.folders),
            max(len(campaign.variants), 1),
            *(len(values) for values in campaign.vary.values()),
        ]
    )
    if count * campaign.repeats > MAX_CELLS:
        axes = " x ".join(str(len(values)) for values in campaign.vary.values()) or "1"
        raise InputError(
            f"the campaign has {count * campaign.repeats:,} cells ({axes} values, with scenarios,"
            f" variants and repeats), and at most {MAX_CELLS:,} are allowed — vary fewer values, or"
            " split it into several files"
        )
    # The same value may be written twice; the setups are then the same.
    setups = {setup.label(): setup for setup in _iterate_setups(campaign)}
    if len(setups) < count and not (campaign.where or campaign.exclude):
        raise InputError(
            f"the campaign has {count - len(setups)} setups twice, because an axis has a value"
            " twice — remove it, and use `repeats` for several runs of a setup"
        )
    kept = [setup for setup in setups.values() if _is_wanted(setup, campaign)]
    if not kept:
        raise InputError("`where` and `exclude` leave no setup — correct or remove them")
    return kept


def list_cells(campaign: CampaignFile, setups: Iterable[CheckedSetup]) -> Sequence[Cell]:
    """Return the cells of checked setups, in the order in which they run."""
    checked = list(setups)
    grid = [_make_cell(campaign, each, n) for each in checked for n in range(campaign.repeats)]
    # Nothing secret is drawn; the order is the same in every call.
    shuffle = random.Random(_SHUFFLE_SEED).shuffle  # noqa: S311
    if campaign.order == "random":
        shuffle(grid)
    elif campaign.order == "paired":
        blocks = [[cell for cell in grid if cell.repeat == n] for n in range(campaign.repeats)]
        for block in blocks:
            shuffle(block)
        return list(itertools.chain.from_iterable(blocks))
    return grid


def make_digest(*parts: object) -> str:
    """Return the SHA-256 digest of JSON values; 1, 1.0, true and "1" are different values."""
    return hashlib.sha256(to_canonical_json(parts).encode()).hexdigest()


def to_canonical_json(value: object) -> str:
    """Return JSON that is the same for equal values in any order of keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _iterate_setups(campaign: CampaignFile) -> Iterator[CellSetup]:
    variants = campaign.variants or {"": {}}
    telling = frozenset(key for key, values in campaign.vary.items() if len(values) > 1)
    for folder, (name, fixed) in itertools.product(campaign.folders, variants.items()):
        for values in itertools.product(*campaign.vary.values()):
            varied = dict(zip(campaign.vary, values, strict=True))
            yield CellSetup(folder, name, varied, fixed, telling)


def _is_wanted(setup: CellSetup, campaign: CampaignFile) -> bool:
    wanted = not campaign.where or any(_matches(setup, each) for each in campaign.where)
    return wanted and not any(_matches(setup, each) for each in campaign.exclude)


def _matches(setup: CellSetup, pattern: Mapping[str, JsonValue]) -> bool:
    """Return whether a setup has every value of a pattern; a list permits any of its values."""
    named = {**setup.varied, "scenario": setup.scenario.name, "variant": setup.variant}
    for key, wanted in pattern.items():
        value = to_canonical_json(named[key])
        permitted = [wanted, *wanted] if isinstance(wanted, list) else [wanted]
        if value not in map(to_canonical_json, permitted):
            return False
    return True


def _make_cell(campaign: CampaignFile, checked: CheckedSetup, repeat: int) -> Cell:
    setup = checked.setup
    sets_seed = (
        campaign.seeds == "paired"
        and checked.seed is not None
        and "workload.seed" not in {**setup.varied, **setup.fixed}
    )
    seed = checked.seed
    if sets_seed and seed is not None:
        seed += repeat
    digest = make_digest(checked.digest, seed, repeat)
    return Cell(setup, checked.digest, repeat, seed, sets_seed, digest)
