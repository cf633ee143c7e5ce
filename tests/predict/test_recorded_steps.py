"""Steps of a scenario's hosts from recorded runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.analysis.cost_model.fit_step_cost import StepMeasurement, fit_step_cost
from laggard.analysis.cost_model.host_measurements import HostKind
from laggard.core.cost_model.demand import CostTerm, ModelDemand
from laggard.core.errors import InputError
from laggard.predict.host_steps import HostSteps, RecordedSteps
from laggard.predict.machine_speed import MachineSpeed, measure_machine_speed
from laggard.predict.step_times import HostCosts
from laggard.scenario.load import load_scenario
from tests.predict.scenario_folder import load, write_scenario

SLOW, FAST = HostKind("cpu", 0.5), HostKind("cpu", 1.0)
DEMAND = ModelDemand(flops_per_sample=1e6, tensors=4, parameter_bytes=1000)


def _costs(hosts: dict[str, tuple[HostKind, ...]]) -> HostCosts:
    """Kinds on which a step of 16 samples takes 0.2 s and 0.1 s."""
    kinds = {
        kind: fit_step_cost([StepMeasurement("m", DEMAND.step(16), seconds)], [CostTerm.FLOPS])
        for kind, seconds in ((SLOW, 0.2), (FAST, 0.1))
    }
    return HostCosts(kinds, hosts)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> MachineSpeed:
    folder = write_scenario(tmp_path_factory.mktemp("machine"))
    return measure_machine_speed(load_scenario(folder).workload, (2,))


def _forecast(
    tmp_path: Path, machine: MachineSpeed, hosts: dict[str, tuple[HostKind, ...]], cpu: str
) -> HostSteps:
    steps = RecordedSteps(_costs(hosts), DEMAND, machine)
    return steps.forecast(load(tmp_path, edge=4, cpu=cpu))


def test_a_recorded_host_has_its_own_seconds(tmp_path: Path, machine: MachineSpeed) -> None:
    found = _forecast(tmp_path, machine, {"edge.trainer.1.1": (SLOW,)}, "50%")
    assert [each.usual_s for each in found.seconds] == pytest.approx([0.2] * 4)
    assert found.notes == ()


def test_another_share_is_slower_in_proportion(tmp_path: Path, machine: MachineSpeed) -> None:
    found = _forecast(tmp_path, machine, {"edge.trainer.1.1": (SLOW, FAST)}, "25%")
    assert found.seconds[0].usual_s == pytest.approx(0.4)


def test_a_tier_that_was_not_recorded_is_refused(tmp_path: Path, machine: MachineSpeed) -> None:
    with pytest.raises(InputError, match="the tier edge"):
        _forecast(tmp_path, machine, {"cloud.server.1.1": (FAST,)}, "50%")
