"""Plans of the short runs that tell the stalls."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import InputError
from laggard.core.span_schema import WARM_UP_STEPS
from laggard.core.yaml_source import to_yaml
from laggard.scenario.load import Scenario, load_scenario
from laggard.stalls.stall_variants import list_ignored, plan_variants
from tests.predict.scenario_folder import write_scenario

STEPS = 10


def load(folder: Path, *overrides: str, **options: object) -> Scenario:
    return load_scenario(write_scenario(folder, **options), overrides)  # type: ignore[arg-type]


def load_variants(scenario: Scenario) -> dict[str, Scenario]:
    """The scenario of every variant, as a campaign would load it."""
    return {
        name: load_scenario(
            scenario.folder, [f"{key}={to_yaml(value)}" for key, value in values.items()]
        )
        for name, values in plan_variants(scenario, STEPS).items()
    }


def test_the_runs_differ_in_one_thing_each(tmp_path: Path) -> None:
    everyone = {"workers": ["cloud.*", "edge.*"]}
    scenario = load(tmp_path / "known", workload={"placement": everyone, "batch_size": 40})
    variants = load_variants(scenario)
    assert list(variants) == ["alone", "warm", "cold", "tier edge", "all"]
    sources = {name: each.workload.samples for name, each in variants.items()}
    assert sources == {
        "alone": "prepared",
        "warm": "warm",
        "cold": "cold",
        "tier edge": "prepared",
        "all": "prepared",
    }
    for name, each in variants.items():
        # The same samples of each worker in every run.
        assert each.workload.batch_size == 8 * len(each.ranks), name
        assert each.workload.stop.steps == STEPS + WARM_UP_STEPS + 1
    workers = {name: len(each.ranks) for name, each in variants.items()}
    assert workers == {"alone": 5, "warm": 5, "cold": 5, "tier edge": 4, "all": 5}
    assert variants["alone"].workload.strategy.name == "local_sgd"
    assert variants["all"].workload.strategy.name == "allreduce"


def test_a_host_of_several_workers_has_one_alone(tmp_path: Path) -> None:
    placement = {"workers": ["edge.*"], "per_host": 2}
    variants = load_variants(load(tmp_path / "known", edge=2, workload={"placement": placement}))
    assert list(variants) == ["alone", "warm", "cold", "tier edge"]
    assert len(variants["alone"].ranks) == 2
    assert len(variants["warm"].ranks) == 4
    assert len(variants["tier edge"].ranks) == 4


def test_the_server_of_a_tier_is_in_it(tmp_path: Path) -> None:
    scenario = load(tmp_path / "known", workload={"strategy": "parameter_server"})
    variants = load_variants(scenario)
    assert variants["tier edge"].workload.placement.server == "edge.trainer.1.1"
    assert variants["alone"].workload.placement.server is None


def test_what_changes_in_time_is_left_out_and_said(tmp_path: Path) -> None:
    event = {"at": "1s", "for": "1s", "hosts": "edge.*", "cpu": "10%"}
    share = {"hosts": "edge.*", "cpu": "30%"}
    scenario = load(
        tmp_path / "known", heterogeneity={"deterministic": [share], "dynamic": [event]}
    )
    for variant in load_variants(scenario).values():
        assert not variant.changes
        assert variant.shares["edge.trainer.1.1"] == 0.3
    assert any("timed changes" in each for each in list_ignored(scenario))


def test_fewer_samples_than_workers_are_refused(tmp_path: Path) -> None:
    # The scenario itself refuses fewer samples than workers where it can; this is the last door.
    scenario = load(tmp_path / "known", workload={"batch_size": 4})
    few = scenario.workload.model_copy(update={"batch_size": 3})
    from dataclasses import replace

    with pytest.raises(InputError, match="batch_size=32"):
        plan_variants(replace(scenario, workload=few), STEPS)
