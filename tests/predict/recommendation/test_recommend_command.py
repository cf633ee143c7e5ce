"""`laggard recommend`, with steps that are really measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import InputError
from laggard.predict.forecast import forecast_scenario
from laggard.predict.host_steps import MachineSteps
from laggard.predict.recommendation.candidates import Setting, forecast_time_s, require_few
from laggard.predict.recommendation.memory_need import measure_memory_need
from laggard.scenario.load import load_scenario
from tests.one_short import one_short
from tests.predict.scenario_folder import write_scenario

PRICES = """\
InstanceType,vCPUs,MemoryGiB,Price,SpotPrice,Region
c.small,2,4,0.1,0.03,here
c.large,8,16,0.3,0.1,here
d.large,8,16,0.5,,here
tiny,2,0.1,0.01,,here
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prices.csv").write_text(PRICES)
    return write_scenario(tmp_path / "known")


def recommend(folder: Path, *arguments: str, within: str = "10h") -> dict[str, object]:
    prices = str(folder.parent / "prices.csv")
    options = ["--within", within, "--prices", prices, "--workers", "2,4", "--json", *arguments]
    found = CliRunner().invoke(main, ["recommend", str(folder), *options])
    assert found.exit_code == 0, found.output
    document = json.loads(found.stdout)
    assert isinstance(document, dict)
    return document


def test_the_cheapest_within_the_budget_is_recommended(folder: Path) -> None:
    document = recommend(folder)
    candidates = {each["name"]: each for each in document["candidates"]}  # type: ignore[attr-defined]
    # The type whose memory holds no worker is left out.
    assert set(candidates) == {
        f"{kind}:{number}:allreduce"
        for kind in ("c.small", "c.large", "d.large")
        for number in (2, 4)
    }
    assert document["feasible"]
    chosen = candidates[document["recommended"]]
    assert chosen["in_budget"] > 0.99
    for each in candidates.values():
        assert 0 < each["time_s_low"] < each["time_s"] < each["time_s_high"]
        assert each["cost"] == pytest.approx(each["time_s"] * each["price_per_hour"] / 3600)
    # Equal machines that cost more are never better.
    assert candidates["d.large:2:allreduce"]["cheapest"] < chosen["cheapest"]
    assert all(candidates[list(candidates)[n]]["cost"] > 0 for n in document["front"])  # type: ignore[attr-defined]


def test_what_cannot_be_done_is_said_with_the_nearest(folder: Path) -> None:
    prices = str(folder.parent / "prices.csv")
    arguments = ["recommend", str(folder), "--within", "1s", "--prices", prices, "--workers", "2"]
    found = CliRunner().invoke(main, [*arguments, "--set", "workload.stop.steps=1000000"])
    assert found.exit_code == 0, found.output
    assert "Infeasible: nothing is likely to end within 1 s. The nearest is" in found.stdout
    assert "Traceback" not in found.output


def test_a_told_measurement_counts(folder: Path) -> None:
    slow = ("--measured", "c.small:2:allreduce=7.5")
    document = recommend(folder, *slow)
    (known,) = [
        each
        for each in document["candidates"]  # type: ignore[attr-defined]
        if each["name"] == "c.small:2:allreduce"
    ]
    assert known["measured_s"] == pytest.approx(40 * 7.5)
    assert known["time_s"] == pytest.approx(40 * 7.5, rel=0.2)
    assert known["time_s_high"] / known["time_s_low"] < 1.3


def test_a_figure_has_the_budget_and_the_answer(folder: Path, tmp_path: Path) -> None:
    recommend(folder, "--figure", str(tmp_path / "front.svg"), "--cost-below", "5")
    text = (tmp_path / "front.svg").read_text()
    assert "recommended: c." in text
    assert "budget" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--within", "6"], "has no unit"),
        (["--within", "0h"], "leaves no time"),
        (["--within", "soon"], "a duration must be"),
        (["--cost-below", "0"], "must be a number above 0"),
        (["--cost-below", "nan"], "must be a number above 0"),
        (["--region", "there"], "its regions are here"),
        (["--speed", "c.small=0"], "a number above 0"),
        (["--speed", "c.medium=2"], "is no type of the price list"),
        (["--measured", "c.small=1"], "is none of the"),
        (["--measured", "c.small:2:allreduce=x"], "a number above 0"),
        (["--measured", "a=1", "--measured", "a=2"], "is given twice"),
        (["--strategies", "adaptive"], "cannot be simulated"),
        (["--strategies", "nothing"], "strategy"),
        (["--workers", "cloud=2"], "no workers are there"),
        (["--prices", "nowhere.csv"], "nowhere.csv"),
        (["--prices", "g5k", "--spot"], "no prices of revocable nodes"),
        (["--figure", "front.pdf"], ".svg or .png"),
        (["--set", "workload.stop={time: 10s}"], "names no steps"),
    ],
)
def test_bad_input_is_one_message(folder: Path, arguments: list[str], message: str) -> None:
    usual = ["--within", "6h", "--prices", str(folder.parent / "prices.csv"), "--workers", "2"]
    found = CliRunner().invoke(main, ["recommend", str(folder), *usual, *arguments])
    assert found.exit_code == 2, found.output
    assert message in found.stderr
    assert "Traceback" not in found.output


def test_no_type_with_enough_memory_is_one_message(folder: Path) -> None:
    prices = folder.parent / "prices.csv"
    prices.write_text("InstanceType,vCPUs,MemoryGiB,Price\ntiny,2,0.1,1\n")
    arguments = ["--within", "6h", "--prices", str(prices), "--workers", "2"]
    found = CliRunner().invoke(main, ["recommend", str(folder), *arguments])
    assert found.exit_code == 2
    assert "has the memory for a worker" in found.stderr


def test_a_training_that_only_computes_is_inverse_to_the_speed(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path / "known", edge=1, rate="10gbit", delay="0ms")
    scenario = load_scenario(folder)
    steps = MachineSteps.measure([scenario])
    setting = Setting(scenario, frozenset(each.name for each in scenario.ranks), 1)
    one_s, four_s = (forecast_time_s(setting, steps, speed) for speed in (1.0, 4.0))
    assert one_s / four_s == pytest.approx(4.0, rel=0.01)


@pytest.mark.parametrize("server", one_short(["edge.*", "cloud.*"]))
@pytest.mark.parametrize("strategy", one_short(["parameter_server", "allreduce", "asynchronous"]))
def test_at_the_speed_of_its_hosts_a_training_is_that_of_the_scenario(
    tmp_path: Path, strategy: str, server: str
) -> None:
    placement = {"workers": ["edge.*"], "server": server}
    workload = {"strategy": strategy, "placement": placement}
    scenario = load_scenario(write_scenario(tmp_path / "known", workload=workload))
    steps = MachineSteps.measure([scenario])
    setting = Setting(scenario, frozenset(each.name for each in scenario.ranks), 4)
    expected_s = forecast_scenario(scenario, steps).makespan_s(40).usual_s
    half_s, two_s = (forecast_time_s(setting, steps, speed) for speed in (0.5, 2.0))
    assert half_s == pytest.approx(expected_s, rel=0.05)
    # A server on such a machine becomes faster with it.
    assert two_s < half_s


def test_memory_grows_with_the_model_and_the_samples(tmp_path: Path) -> None:
    small, large = (
        measure_memory_need(
            load_scenario(write_scenario(tmp_path / model, workload={"model": model})).workload
        )
        for model in ("mlp", "resnet18")
    )
    assert small.gib(8) < small.gib(800)
    # 11 million parameters of four bytes, their gradients and their momentum.
    assert large.fixed_bytes - small.fixed_bytes > 11e6 * 4 * 2
    assert large.sample_bytes > small.sample_bytes > 0


def test_too_many_candidates_are_refused() -> None:
    require_few(10, 400)
    with pytest.raises(InputError, match="are 4400 candidates, and at most 4000 are compared"):
        require_few(11, 400)
