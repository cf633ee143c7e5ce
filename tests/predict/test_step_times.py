"""Step times of a model on the hosts of recorded runs, from the run folders alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.analysis.evaluate.synthetic.run_generator import QUIET, Tier, TraceSpec, generate_run
from laggard.analysis.tables.write_run import write_run
from laggard.core.cost_model.demand import CostTerm
from laggard.core.errors import InputError
from laggard.predict.step_times import HostCosts, fit_host_costs, measure_demand
from laggard.scenario.scaffold import write_scenario_template

FIXED_S, PER_FLOP_S, PER_TENSOR_S = 0.002, 2e-10, 5e-5
SAMPLES = 16
MODELS = ("mlp", "cnn", "resnet8", "transformer", "wide_cnn", "wide_mlp")


def expect_s(model: str, slowness: float = 1.0) -> float:
    demand = measure_demand(model, "digits").step(SAMPLES)
    return slowness * (FIXED_S + PER_FLOP_S * demand.flops + PER_TENSOR_S * demand.tensors)


def record_run(folder: Path, model: str, *, slowness: float = 4.0) -> Path:
    """Write a run folder as Laggard records it, of hosts whose step times follow the formula."""
    forward_s = expect_s(model)
    spec = TraceSpec(
        (Tier("cloud", 2), Tier("edge", 2, slowness)),
        steps=20,
        steps_per_epoch=1000,
        samples=SAMPLES,
        noise=QUIET,
        prep_s=0.0,
        forward_s=forward_s,
        backward_s=0.0,
        optimizer_s=0.0,
    )
    write_run(generate_run(spec), folder)
    write_scenario_template(folder / "scenario")
    workload = folder / "scenario" / "workload.yaml"
    workload.write_text(workload.read_text().replace("model: resnet8 ", f"model: {model} "))
    return folder


@pytest.fixture(scope="module")
def costs(tmp_path_factory: pytest.TempPathFactory) -> HostCosts:
    """Five of the models; the sixth is new."""
    folder = tmp_path_factory.mktemp("runs")
    return fit_host_costs([record_run(folder / model, model) for model in MODELS if model != "cnn"])


@pytest.mark.parametrize(
    ("host", "slowness"), [("cloud.trainer.1.2", 1.0), ("edge.trainer.1.1", 4.0)]
)
def test_the_step_of_a_new_model_is_predicted(costs: HostCosts, host: str, slowness: float) -> None:
    answer = costs.predict(host, measure_demand("cnn", "digits").step(SAMPLES))
    expected = expect_s("cnn", slowness)
    assert answer.seconds == pytest.approx(expected, rel=1e-3)
    assert answer.low_s <= answer.seconds * 1.001
    assert answer.high_s >= answer.seconds * 0.999
    assert answer.coverage == pytest.approx(5 / 6)
    assert not answer.is_extrapolated


def test_a_kind_of_hosts_is_as_good_as_a_host(costs: HostCosts) -> None:
    step = measure_demand("cnn", "digits").step(SAMPLES)
    assert costs.predict("edge at 25 %", step) == costs.predict("edge.trainer.1.1", step)


def test_a_larger_batch_and_a_larger_model_are_marked(costs: HostCosts) -> None:
    assert costs.predict(
        "cloud.trainer.1.1", measure_demand("resnet18", "digits").step(SAMPLES)
    ).is_extrapolated
    assert costs.predict(
        "cloud.trainer.1.1", measure_demand("wide_cnn", "digits").step(SAMPLES + 1)
    ).is_extrapolated


def test_one_run_gives_seconds_in_proportion_to_operations(tmp_path: Path) -> None:
    costs = fit_host_costs([record_run(tmp_path, "cnn")])
    (fitted, _) = costs.kinds.values()
    assert fitted.terms == (CostTerm.FLOPS,)
    step = measure_demand("cnn", "digits").step(SAMPLES)
    assert costs.predict("cloud.trainer.1.1", step).seconds == pytest.approx(
        expect_s("cnn"), rel=1e-3
    )
    assert "no interval" in str(costs.predict("cloud.trainer.1.1", step))


def test_an_unknown_host_is_refused_with_the_known_ones(costs: HostCosts) -> None:
    step = measure_demand("cnn", "digits").step(SAMPLES)
    with pytest.raises(
        InputError, match=r"fog is no host .* cloud\.trainer\.1\.1, .* cloud, edge at"
    ):
        costs.predict("fog", step)


def test_a_host_of_several_kinds_is_refused_with_them(tmp_path: Path) -> None:
    costs = fit_host_costs(
        [record_run(tmp_path / str(slowness), "mlp", slowness=slowness) for slowness in (2.0, 4.0)]
    )
    step = measure_demand("mlp", "digits").step(SAMPLES)
    with pytest.raises(InputError, match=r"edge at 50 %, edge at 25 %"):
        costs.predict("edge.trainer.1.1", step)
    assert costs.predict("edge at 50 %", step).seconds == pytest.approx(
        expect_s("mlp", 2.0), rel=1e-3
    )


def test_runs_without_their_model_are_refused(tmp_path: Path) -> None:
    write_run(generate_run(TraceSpec(steps=10)), tmp_path / "imported")
    with pytest.raises(InputError, match=r"no scenario/workload.yaml, so its model is unknown"):
        fit_host_costs([tmp_path / "imported"])
    with pytest.raises(InputError, match=r"no run was given"):
        fit_host_costs([])
    with pytest.raises(InputError, match=r"not a folder"):
        fit_host_costs([tmp_path / "nowhere"])


@pytest.mark.parametrize("key", ["model", "dataset"])
def test_code_that_a_run_folder_names_is_not_executed(tmp_path: Path, key: str) -> None:
    folder = record_run(tmp_path, "mlp")
    workload = folder / "scenario" / "workload.yaml"
    named = {"model": ("model: mlp ", "model: os:_exit "), "dataset": ("digits ", "os:_exit ")}
    workload.write_text(workload.read_text().replace(*named[key], 1))
    with pytest.raises(InputError, match=r"os:_exit is code, .* is not executed — give demands="):
        fit_host_costs([folder])
    model = "os:_exit" if key == "model" else "mlp"
    demand = measure_demand("mlp", "digits")
    costs = fit_host_costs([folder], {model: demand})
    assert costs.predict("cloud.trainer.1.1", demand.step(SAMPLES)).seconds == pytest.approx(
        expect_s("mlp"), rel=1e-3
    )


@pytest.mark.parametrize(
    ("model", "dataset", "text"),
    [
        ("resnet9", "digits", "model: .*no such model"),
        ("cnn", "digit", "dataset.*no such dataset"),
        ("cnn", {"name": "synthetic", "kind": "tokens"}, "takes images"),
    ],
)
def test_unknown_models_and_data_are_refused(model: str, dataset: str, text: str) -> None:
    with pytest.raises(InputError, match=text):
        measure_demand(model, dataset)
