"""Tasks `simulate` and `predict`: trainings of a scenario that are computed and not run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import ClassVar

from pydantic import Field, JsonValue

from laggard import __version__
from laggard.campaign.tasks.cell_task import CellTask
from laggard.core.errors import InputError
from laggard.core.yaml_source import to_yaml

_RUN_TABLES = ("run.json", "*.parquet", "scenario/*")


class ForecastTask(CellTask):
    """Scenario whose training is computed.

    Attributes:
        path: folder of the scenario, relative to the campaign file.
        set: values of keys of the scenario's files, such as `{workload.batch_size: 64}`.
        recorded: folders of runs whose steps are known, relative to the campaign file; if empty,
            steps are measured on the machine of the process.
    """

    path: str = Field(min_length=1)
    set: dict[str, JsonValue] = Field(default_factory=dict)
    recorded: list[str] = Field(default_factory=list)

    @property
    def overrides(self) -> tuple[str, ...]:
        """Return the values as `--set` arguments."""
        return tuple(f"{key}={to_yaml(value)}" for key, value in sorted(self.set.items()))

    def list_inputs(self, folder: Path) -> Sequence[Path]:
        """Return the files of the scenario and of the recorded runs, once it is known to load."""
        from laggard.predict.forecast import require_predictable
        from laggard.scenario.load import load_scenario

        scenario = load_scenario(folder / self.path, self.overrides)
        if not scenario.trains:
            raise InputError(
                f"{self.path}: {scenario.untrained_reason} — give a scenario whose workload.yaml"
                " has a model and a dataset"
            )
        require_predictable(scenario)
        return tuple(self._list_files(folder))

    def _list_files(self, folder: Path) -> Iterator[Path]:
        yield from (each for each in sorted((folder / self.path).iterdir()) if each.is_file())
        for run in self.recorded:
            files = {each for p in _RUN_TABLES for each in (folder / run).glob(p)}
            if not files:
                raise InputError(f"{run}: is no run folder — give the folder of a run")
            yield from (each for each in sorted(files) if each.is_file())

    def list_recorded(self, folder: Path) -> tuple[Path, ...]:
        """Return the paths of the recorded runs."""
        return tuple(folder / each for each in self.recorded)


class SimulateTask(ForecastTask):
    """One size of a scenario, as `laggard simulate` computes it.

    Attributes:
        scale: number of workers by tier, such as `{edge: 1000000}`.
        steps: number of steps.
        spread: standard deviation of the logarithm of a step's duration; None for the measured one.
        seed: seed of the durations.
    """

    columns: ClassVar[tuple[str, ...]] = ("worker_count", "step_s", "efficiency", "relative_error")

    scale: dict[str, int] = Field(default_factory=dict)
    steps: int = Field(default=100, ge=1)
    spread: float | None = None
    seed: int = Field(default=1, ge=0)

    def get_seed(self) -> int | None:
        """Return the seed of the durations."""
        return self.seed

    def compute(self, folder: Path) -> Mapping[str, object]:
        """Simulate the scenario's own size, and this one."""
        from laggard.predict.simulation.simulate_scenario import (
            SimulationOptions,
            parse_scales,
            simulate_scenario,
        )

        scales = parse_scales([f"{tier}={count}" for tier, count in self.scale.items()])
        options = SimulationOptions(self.steps, self.spread, self.seed, self.list_recorded(folder))
        simulated = simulate_scenario(folder / self.path, self.overrides, scales, options)
        found = simulated.scales[-1]
        return {
            "outcome": {
                "makespan_s": found.step_s * self.steps,
                "steps": self.steps,
                "samples_per_s": found.samples_per_s,
            },
            "columns": {
                "worker_count": found.workers,
                "step_s": found.step_s,
                "efficiency": found.efficiency,
                "relative_error": found.relative_error,
            },
            "answer": [f"{found.workers:,} workers: {found.samples_per_s:.4g} samples/s"],
            "versions": {"laggard": __version__},
        }


class PredictTask(ForecastTask):
    """Scenario with one number of workers, as `laggard predict` computes it.

    Attributes:
        workers: number of hosts of a tier, such as `edge=8`; those of the scenario if None.
        samples: samples of one worker in a step, with `workers`; if None, the batch stays.
    """

    columns: ClassVar[tuple[str, ...]] = (
        "worker_count",
        "step_s",
        "step_s_low",
        "step_s_high",
        "limited_by",
    )

    workers: str | None = None
    samples: int | None = Field(default=None, ge=1)

    def compute(self, folder: Path) -> Mapping[str, object]:
        """Predict the training."""
        from laggard.predict.predict_scenario import PredictionOptions, predict_scenario

        options = PredictionOptions(self.workers, self.samples, self.list_recorded(folder))
        prediction = predict_scenario(folder / self.path, self.overrides, options)
        found, steps = prediction.forecasts[-1], prediction.scenario.workload.stop.steps
        makespan_s = None if steps is None else found.makespan_s(steps).usual_s
        return {
            "outcome": {
                "makespan_s": makespan_s,
                "steps": steps,
                "samples_per_s": found.samples_per_s,
                "cost": None if makespan_s is None else found.cost_per_hour * makespan_s / 3600,
            },
            "columns": {
                "worker_count": found.workers,
                "step_s": found.step_s.usual_s,
                "step_s_low": found.step_s.low_s,
                "step_s_high": found.step_s.high_s if isfinite(found.step_s.high_s) else None,
                "limited_by": found.limit.name.lower(),
            },
            "answer": [f"limited by {found.limit}"],
            "versions": {"laggard": __version__},
        }
