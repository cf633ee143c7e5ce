"""Steps of planned trainings: predicted by `laggard plan-model`, and measured in the emulation.

    python benchmarks/planned_runs.py [RUNS]

Five models are planned on four continua of four hosts, and each plan is trained for 20 steps. The
blocks of the model are measured twice before the run and twice after it, and the median of the four
predictions counts, since the speed of a shared machine changes. RUNS is the folder of the runs.

Then one model is trained by a parameter server and by all-reduce, with links to the server that are
slower and faster than the rate at which both should take as long.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from laggard.campaign.run_subprocess import run_in_subprocess
from laggard.predict.planning.model_plan import (
    PlannedModel,
    build_problem,
    plan_model,
    profile_scenario_model,
)
from laggard.predict.planning.model_plan_output import find_best_baseline
from laggard.workloads.planning.baselines import list_baselines
from laggard.workloads.planning.evaluate_plan import compute_step_s, evaluate_plan
from laggard.workloads.planning.plan_file import build_plan_file, write_plan

MODELS = ("cnn", "wide_cnn", "resnet8", "transformer", "wide_mlp")
STEPS, WARM_UP = 20, 3
TOO_LONG_S = 400.0

LAYERS = """\
environment: {job_name: planned, g5k: {cluster: paravance}}
layers:
  - name: cloud
    services: [{name: trainer, quantity: 2}]
  - name: edge
    services: [{name: trainer, quantity: 2}]
"""
EQUAL_LINKS = 'networks: [{src: "*", dst: "*", delay: 1ms, rate: 200mbit}]\n'
UNEQUAL_LINKS = """\
networks:
  - {src: "cloud.*", dst: "cloud.*", delay: 0.5ms, rate: 500mbit}
  - {src: "edge.*", dst: "edge.*", delay: 2ms, rate: 100mbit}
  - {src: "edge.*", dst: "cloud.*", delay: 8ms, rate: 30mbit, symmetric: true}
"""
EQUAL_HOSTS = 'deterministic: [{hosts: "*", cpu: 20%}]\n'
UNEQUAL_HOSTS = """\
deterministic:
  - {hosts: "cloud.*", cpu: 30%}
  - {hosts: "edge.*", cpu: 10%}
"""
CONTINUA = {
    "equal": (EQUAL_LINKS, EQUAL_HOSTS),
    "unequal hosts": (EQUAL_LINKS, UNEQUAL_HOSTS),
    "unequal links": (UNEQUAL_LINKS, EQUAL_HOSTS),
    "both unequal": (UNEQUAL_LINKS, UNEQUAL_HOSTS),
}
AVERAGE_MBPS, AVERAGE_FACTORS = 40.0, (0.75, 1.2, 1.8, 3.0)
AVERAGE_LINKS = """\
networks:
  - {{src: "*", dst: "*", delay: 0.2ms, rate: {rate}mbit}}
  - {{src: "cloud.*", dst: "edge.*", delay: 0.2ms, rate: {server}mbit, symmetric: true}}
"""
AVERAGE_HOSTS = """\
deterministic:
  - {hosts: "cloud.*", cpu: 41%}
  - {hosts: "edge.*", cpu: 40%}
"""
PLANNED = ["workload.strategy={name: planned, plan: plan.yaml}"]
WORKLOAD = """\
model: {model}
dataset: digits
batch_size: 512
optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
strategy: {{name: allreduce}}
placement: {{workers: ["*"], per_host: 1}}
stop: {{steps: {steps}}}
evaluate_every: 1000000
"""


def write_scenario(folder: Path, model: str, continuum: str) -> None:
    """Write a scenario that trains a model on a continuum."""
    network, heterogeneity = CONTINUA[continuum]
    folder.mkdir(parents=True)
    for name, text in {
        "layers_services": LAYERS,
        "network": network,
        "heterogeneity": heterogeneity,
        "workflow": "[]\n",
        "workload": WORKLOAD.format(model=model, steps=STEPS),
    }.items():
        (folder / f"{name}.yaml").write_text(text)


def list_overrides(planned: PlannedModel) -> list[str]:
    """Return what trains a scenario by a plan: on the hosts that the plan uses."""
    devices = list_used(planned)
    return [
        *PLANNED,
        f"workload.placement={{workers: [{', '.join(devices)}], per_host: 1}}",
    ]


def measure_step_s(folder: Path) -> float:
    """Return the median seconds between the ends of a run's steps, without the first ones."""
    table = pq.read_table(folder / "steps.parquet").to_pandas()
    ends_ns = table.groupby("step").end_ns.max().sort_index().to_numpy()[WARM_UP - 1 :]
    return float(np.median(np.diff(ends_ns))) / 1e9


def compare(model: str, continuum: str, folder: Path, runs: Path) -> float | None:
    """Plan, train and plan again; print a row, and return the error of the prediction."""
    write_scenario(folder, model, continuum)
    planned = plan_model(folder)
    predicted = [planned.found.step_s, predict_step_s(planned)]
    write_plan(folder / "plan.yaml", build_plan_file(planned.problem, planned.found))
    ended = run_in_subprocess(
        folder, list_overrides(planned), runs, timeout_s=TOO_LONG_S, capture_errors=True
    )
    answer = ended.result or {"status": f"exit status {ended.status}"}
    if answer["status"] != "done":
        print(f"| {model} | {continuum} | {answer['status']}: {ended.errors[-300:]} | | | | |")
        return None
    predicted += [predict_step_s(planned) for _ in predicted]
    measured_s, predicted_s = (
        measure_step_s(Path(str(answer["folder"]))),
        statistics.median(predicted),
    )
    error = predicted_s / measured_s - 1
    name, known_s = find_best_baseline(planned)
    print(
        f"| {model} | {continuum} | {len(list_used(planned))} hosts,"
        f" {planned.found.plan.micro_batches} micro-batches | {known_s / planned.found.step_s:.2f}x"
        f" {name} | {min(predicted) * 1e3:.0f} to {max(predicted) * 1e3:.0f} ms"
        f" | {measured_s * 1e3:.0f} ms | {error:+.1%} |",
        flush=True,
    )
    return error


def compare_averages(folder: Path, runs: Path) -> None:
    """Print the measured steps with a server and with all-reduce, at two rates of its links.

    Of three equal hosts, each sends a server the parameters once and gets them once. A ring passes
    4/3 of them over each link, at the rate of the slowest one. So both take as long if the links to
    the server are 1.5 times as fast as the others.
    """
    print("\n| links to the server | parameter server | all-reduce |\n|---|---|---|")
    for factor in AVERAGE_FACTORS:
        own = folder / f"{factor}"
        write_scenario(own, "wide_mlp", "equal")
        (own / "layers_services.yaml").write_text(LAYERS.replace("quantity: 2", "quantity: 1", 1))
        (own / "network.yaml").write_text(
            AVERAGE_LINKS.format(rate=AVERAGE_MBPS, server=factor * AVERAGE_MBPS)
        )
        (own / "heterogeneity.yaml").write_text(AVERAGE_HOSTS)
        planned = plan_model(own)
        cells = []
        for way in ("parameter server", "all-reduce"):
            plan = list_baselines(planned.problem)[f"data parallel, {way}, even"]
            found = evaluate_plan(planned.problem, plan)
            write_plan(own / "plan.yaml", build_plan_file(planned.problem, found))
            ended = run_in_subprocess(own, PLANNED, runs, timeout_s=TOO_LONG_S)
            folder_of_run = Path(str((ended.result or {})["folder"]))
            cells.append(f"{measure_step_s(folder_of_run):.2f} s, {found.step_s:.2f} predicted")
        print(f"| {factor:.2f} times as fast | " + " | ".join(cells) + " |", flush=True)


def predict_step_s(planned: PlannedModel) -> float:
    """Measure the blocks again, and return the predicted seconds of a step of the same plan."""
    scenario = planned.scenario
    profile, handling, _ = profile_scenario_model(scenario)
    return compute_step_s(build_problem(scenario, profile, handling), planned.found.plan)


def list_used(planned: PlannedModel) -> list[str]:
    """Return the names of the hosts that a plan uses."""
    return list(build_plan_file(planned.problem, planned.found).hosts)


def main() -> None:
    """Print the table."""
    print("| model | continuum | plan | beside | predicted | measured | error |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary) / "runs"
        errors = [
            compare(model, continuum, Path(temporary) / f"{model} {number}", runs)
            for model in MODELS
            for number, continuum in enumerate(CONTINUA)
        ]
    known = [abs(each) for each in errors if each is not None]
    print(
        f"\n{len(known)} of {len(errors)} runs: median error {statistics.median(known):.1%},"
        f" 90th percentile {np.quantile(known, 0.9):.1%}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        runs = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(temporary) / "runs"
        compare_averages(Path(temporary), runs)


if __name__ == "__main__":
    main()
