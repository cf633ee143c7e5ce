"""The strategies that another run can be imagined under, with their parameters and their rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from laggard.analysis.other_strategy.groups import Alone, PartialReduce
from laggard.analysis.other_strategy.lockstep import meet_every, meet_in_tiers
from laggard.analysis.other_strategy.neighbours import Bounds, play_neighbours
from laggard.analysis.other_strategy.scene import Played, Scene
from laggard.analysis.other_strategy.served import BackupRule, StalenessRule, play_served
from laggard.errors import InputError

Value = int | str
Values = Mapping[str, Value]

ALL_REDUCING = frozenset({"allreduce", "local_sgd", "diloco"})
"""Strategies in whose runs all ranks make all-reduces of what the model has, by the same
library."""


@dataclass(frozen=True)
class _Kind:
    """What there is to know of a strategy: its parameters as they are unless told otherwise, and
    how it is played.
    """

    defaults: Values
    play: Callable[[Scene, Mapping[str, int], bool], Played]


_BOUNDED = {"staleness": 4, "backups": 0, "skip": 4, "ahead": 8}
_KINDS: Mapping[str, _Kind] = {
    "allreduce": _Kind({}, lambda scene, _, __: meet_every(scene, 1)),
    "local_sgd": _Kind(
        {"steps": 8, "after": 0}, lambda scene, n, _: meet_every(scene, n["steps"], n["after"])
    ),
    "diloco": _Kind({"steps": 50}, lambda scene, n, _: meet_every(scene, n["steps"])),
    "hierarchical": _Kind(
        {"tier_steps": 1, "wan_steps": 8},
        lambda scene, n, _: meet_in_tiers(scene, n["tier_steps"], n["wan_steps"]),
    ),
    "parameter_server": _Kind(
        {}, lambda scene, _, __: play_served(scene, StalenessRule(scene.world, 0))
    ),
    "asynchronous": _Kind(
        {}, lambda scene, _, __: play_served(scene, StalenessRule(scene.world, None))
    ),
    "bounded_staleness": _Kind(
        {"staleness": 4},
        lambda scene, n, _: play_served(scene, StalenessRule(scene.world, n["staleness"])),
    ),
    "backup_workers": _Kind(
        {"backups": 1},
        lambda scene, n, _: play_served(scene, BackupRule(scene.world, n["backups"])),
    ),
    "gossip": _Kind(
        {"graph": "ring"}, lambda scene, _, complete: play_neighbours(scene, Bounds(complete))
    ),
    "hop": _Kind(
        {"graph": "ring", **_BOUNDED},
        lambda scene, n, complete: play_neighbours(
            scene, Bounds(complete, n["staleness"], n["backups"], n["skip"], n["ahead"])
        ),
    ),
    "partial_reduce": _Kind(
        {"group": 2}, lambda scene, n, _: PartialReduce(scene, n["group"]).play()
    ),
    "ad_psgd": _Kind({}, lambda scene, _, __: Alone(scene).play()),
    "overlap_local_sgd": _Kind({}, lambda scene, _, __: Alone(scene).play()),
}
_LEAST = {"steps": 1, "tier_steps": 1, "wan_steps": 1, "group": 2, "ahead": 1}
STRATEGIES = tuple(_KINDS)


@dataclass(frozen=True)
class Other:
    """A strategy to imagine a run under.

    Attributes:
        name: one of `STRATEGIES`.
        parameters: as in `workload.yaml`; those that are not given are its defaults there.
    """

    name: str
    parameters: Values = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in _KINDS:
            raise InputError(
                f"{self.name}: no strategy that can be played — those are {', '.join(STRATEGIES)}"
            )
        known = _KINDS[self.name].defaults
        for name, value in self.parameters.items():
            if name not in known:
                told = ", ".join(known) or "none"
                raise InputError(
                    f"{self.name}: {name} is no parameter that its time depends on — those are"
                    f" {told}"
                )
            self._check(name, value, known[name])

    def _check(self, name: str, value: Value, default: Value) -> None:
        if isinstance(default, str):
            if value not in ("ring", "complete"):
                raise InputError(f"{self.name}: {name} {value} is no graph — give ring or complete")
            return
        least = _LEAST.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(
                f"{self.name}: {name} {value} — give a whole number of {least} or more"
            )

    @property
    def settings(self) -> Values:
        """All parameters."""
        return {**_KINDS[self.name].defaults, **self.parameters}

    @property
    def told(self) -> str:
        """Name and parameters, for people."""
        return ", ".join([self.name, *(f"{name} {value}" for name, value in self.settings.items())])

    def play(self, scene: Scene) -> Played:
        """Plays it."""
        numbers = {name: value for name, value in self.settings.items() if isinstance(value, int)}
        return _KINDS[self.name].play(scene, numbers, self.settings.get("graph") == "complete")
