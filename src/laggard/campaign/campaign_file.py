"""Campaign file: which cells a campaign has, in which order they run, and when it stops.

scenario: quickstart            # folder, relative to this file; or scenarios: [a, b]
repeats: 5                      # runs of each setup; repeat r adds r to the seed
vary:                           # any key of any scenario file, as for --set, and any value
  workload.batch_size: [64, 128]
  workload.strategy: [allreduce, {name: local_sgd, steps: 8}]
exclude:                        # setups that are left out
  - {workload.batch_size: 64, workload.strategy: allreduce}
order: paired                   # compared setups run one after the other
stop: {time: 8h}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from laggard.campaign.tasks.registry import TASKS
from laggard.core.corrections.model_problems import validate_model
from laggard.core.errors import InputError
from laggard.core.files.input_files import read_bounded
from laggard.core.units import DurationS
from laggard.core.yaml_source import MAX_BYTES, parse_yaml

Values = Mapping[str, JsonValue]
NumericColumn = Literal[
    "makespan_s", "accuracy", "loss", "samples_per_s", "bytes_sent", "cost", "fairness", "lost_s"
]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class IntervalRule(_Model):
    """Rule that a setup needs no more repeats, because its mean is known well enough.

    Attributes:
        column: column of the results table.
        width: half the width of the 95 % interval of the mean, as a fraction of the mean.
        least: number of repeats that every setup has.
    """

    column: NumericColumn = "makespan_s"
    width: float = Field(gt=0, lt=1)
    least: int = Field(default=3, ge=2)


class StopRules(_Model):
    """Rules that end a campaign early; None where there is no such rule.

    Attributes:
        time: real seconds of one call of `laggard campaign`.
        node_hours: machines x hours of all attempts of the campaign.
        interval: rule for the repeats of one setup.
    """

    time: DurationS | None = None
    node_hours: float | None = Field(default=None, gt=0)
    interval: IntervalRule | None = None


_RUN_KEYS = ("scenario", "scenarios", "artifacts", "app_conf", "for", "repeats", "seeds")
"""Keys that have a meaning for runs of scenarios only."""


class CampaignFile(_Model):
    """Content of a campaign file.

    Attributes:
        command: `run`, or a command that needs no continuum, whose keys are those of `vary` then.
        scenario: folder of the scenario, relative to the file. For another command than `run`, it
            is the folder of the file and the command, as in `studies/evaluate`, once it is loaded.
        scenarios: folders of several scenarios, instead of `scenario`.
        artifacts: folder with the files of the scenario's plays, relative to the file.
        app_conf: set of variables in `workflow_env.yaml` for the plays.
        duration: time between launch and finalize, if the scenario trains nothing.
        repeats: runs of each setup.
        seeds: `paired`: repeat r of every setup has the scenario's seed plus r, so that setups are
            compared seed by seed; `same`: all repeats have the scenario's seed.
        vary: values of keys of the scenario files; every combination is a setup.
        variants: named sets of keys and values, of which every setup has one.
        where: if given, only setups that have all values of one of these.
        exclude: setups that have all values of one of these are left out.
        order: `grid`: the repeats of a setup one after the other; `random`: all cells shuffled;
            `paired`: all setups, shuffled, before the next repeat.
        retries: further attempts of a cell that is not done, in one call.
        stop: rules that end the campaign early.
    """

    command: Literal["run", "analyze", "evaluate", "predict", "simulate"] = "run"
    scenario: Path | None = None
    scenarios: tuple[Path, ...] = ()
    artifacts: Path | None = None
    app_conf: str | None = None
    duration: str | None = Field(default=None, alias="for")
    repeats: int = Field(default=1, ge=1, le=10_000)
    seeds: Literal["paired", "same"] = "paired"
    vary: dict[str, list[JsonValue]] = Field(default_factory=dict)
    variants: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    where: tuple[dict[str, JsonValue], ...] = ()
    exclude: tuple[dict[str, JsonValue], ...] = ()
    order: Literal["grid", "random", "paired"] = "grid"
    retries: int = Field(default=0, ge=0, le=10)
    stop: StopRules = StopRules()

    @model_validator(mode="after")
    def _require_scenario(self) -> CampaignFile:
        if self.command in TASKS:
            self._refuse_run_keys()
        elif (self.scenario is None) == (not self.scenarios):
            raise ValueError("a campaign has either `scenario` or `scenarios` — give one of them")
        return self

    def _refuse_run_keys(self) -> None:
        given = [
            key for key in _RUN_KEYS if {"for": "duration"}.get(key, key) in self.model_fields_set
        ]
        rules = self.stop
        given += [
            f"stop.{key}" for key in ("node_hours", "interval") if getattr(rules, key) is not None
        ]
        for key in given:
            raise ValueError(
                f"`{key}` is for runs of scenarios, and `command: {self.command}` runs none —"
                " remove it"
            )

    @property
    def folders(self) -> Sequence[Path]:
        """Return the folders of all scenarios."""
        return self.scenarios if self.scenario is None else (self.scenario,)


def load_campaign(path: Path) -> CampaignFile:
    """Read a campaign file; its paths become absolute.

    Raises:
        InputError: the file is missing or is not a campaign.
    """
    data = read_bounded(path, MAX_BYTES)
    campaign = validate_model(parse_yaml(data, str(path)), CampaignFile)
    _validate_axes(path, campaign)
    here = path.absolute().parent
    if campaign.command in TASKS:
        return _expand_task_values(campaign, here)
    return campaign.model_copy(
        update={
            "scenario": campaign.scenario and (here / campaign.scenario).resolve(),
            "scenarios": tuple((here / each).resolve() for each in campaign.scenarios),
            "artifacts": campaign.artifacts and (here / campaign.artifacts).resolve(),
        }
    )


def _expand_task_values(campaign: CampaignFile, here: Path) -> CampaignFile:
    task = TASKS[campaign.command]
    vary = {key: task.expand_values(key, each, here) for key, each in campaign.vary.items()}
    return campaign.model_copy(update={"scenario": here / campaign.command, "vary": vary})


def _validate_axes(path: Path, campaign: CampaignFile) -> None:
    for key, values in campaign.vary.items():
        if not values:
            raise InputError(
                f"{path}: vary.{key}: an axis without values makes no run — give some, or omit it"
            )
    folders = [str(each) for each in campaign.scenarios]
    if len(set(folders)) < len(folders):
        raise InputError(f"{path}: scenarios: a folder is there twice — remove one of them")
    keys = [*campaign.vary, *{key for each in campaign.variants.values() for key in each}]
    for first in keys:
        for other in keys:
            if other.startswith(f"{first}."):
                raise InputError(
                    f"{path}: {other}: this key is a part of {first}, which is varied too, so one"
                    " of them would have no effect — vary one of them, or use `variants`"
                )
    for key in sorted({key for key in keys if keys.count(key) > 1}):
        raise InputError(
            f"{path}: {key}: this key is in `vary` and in `variants`, and only one of them can"
            " set it — remove it from one"
        )
    known = {*campaign.vary, "scenario", "variant"}
    for name in ("where", "exclude"):
        for key in sorted({key for each in getattr(campaign, name) for key in each} - known):
            raise InputError(
                f"{path}: {name}: {key}: no axis has this name — use one of"
                f" {', '.join(sorted(known))}"
            )
