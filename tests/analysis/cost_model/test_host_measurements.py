"""Measured steps of a run's hosts: seconds of computing per kind of host and batch size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from laggard.analysis.cost_model.host_measurements import HostKind, measure_host_steps
from laggard.analysis.evaluate.synthetic.run_generator import (
    QUIET,
    Injection,
    Tier,
    TraceSpec,
    generate_run,
)
from laggard.analysis.tables.load_run import RunData, load_run
from laggard.analysis.tables.write_run import write_run
from laggard.core.cost_model.demand import ModelDemand, StepDemand
from laggard.core.errors import RunFolderError
from laggard.core.span_schema import Flag, Lane, Phase

DEMAND = ModelDemand(2e6, 8, 4000)
COMPUTE_S = 0.002 + 0.020 + 0.040 + 0.003
"""Preparation, forward pass, backward pass and optimizer of `TraceSpec`."""


def spec(*injections: Injection) -> TraceSpec:
    tiers = (Tier("cloud", 2), Tier("edge", 2, 4.0))
    return TraceSpec(
        tiers, steps=60, steps_per_epoch=1000, noise=QUIET, injections=injections, samples=16
    )


def with_machines(run: RunData, *machines: dict[str, str | float | int | None]) -> RunData:
    assert run.record is not None
    return replace(run, record=run.record.model_copy(update={"hosts": machines}))


def test_the_seconds_of_a_step_are_those_of_its_computing() -> None:
    found = measure_host_steps(generate_run(spec()), "cnn", DEMAND)
    assert [each.host for each in found] == [
        "cloud.trainer.1.1",
        "cloud.trainer.1.2",
        "edge.trainer.1.1",
        "edge.trainer.1.2",
    ]
    assert [each.step.seconds for each in found] == pytest.approx(
        [COMPUTE_S, COMPUTE_S, 4 * COMPUTE_S, 4 * COMPUTE_S], rel=1e-6
    )
    assert {each.step.demand for each in found} == {StepDemand(3.2e7, 8)}
    assert {each.step.model for each in found} == {"cnn"}


def test_a_short_slowdown_changes_no_measurement() -> None:
    slow = Injection("compute", 5.0, first=10, last=30, rank=0)
    quiet, disturbed = (
        measure_host_steps(generate_run(each), "cnn", DEMAND) for each in (spec(), spec(slow))
    )
    assert quiet == disturbed


def test_every_batch_size_is_a_measurement() -> None:
    run = generate_run(spec())
    work = np.where(run.spans.step % 2 == 0, 16, 6)
    run = replace(run, spans=run.spans.with_columns(**{**run.spans.to_dict(), "work": work}))
    found = measure_host_steps(run, "cnn", DEMAND)
    assert [each.step.demand.flops for each in found] == [1.2e7, 3.2e7] * 4


def test_each_pass_of_a_clients_round_is_a_step() -> None:
    """A round of four passes: the preparation of all samples belongs to the first one."""
    parts = (
        (Phase.PREP.code, 900, 102),
        *((Phase.FORWARD.code, 2000, 32), (Phase.BACKWARD.code, 4000, 32)) * 2,
        *((Phase.FORWARD.code, 1000, 32), (Phase.BACKWARD.code, 5000, 32)),
        (Phase.FORWARD.code, 1000, 6),
        (Phase.BACKWARD.code, 2000, 6),
    )
    rows = [(step, rank, *part) for step in range(5) for rank in (0, 1) for part in parts]
    run = generate_run(spec())
    step, rank, phase, micros, work = (np.array(each) for each in zip(*rows, strict=True))
    columns = {
        "step": step,
        "rank": rank,
        "phase": phase,
        "dur_ns": micros * 1000,
        "start_ns": np.cumsum(micros * 1000),
        "work": work,
    }
    spans = run.spans.where(np.s_[: len(rows)])
    rest = {name: np.zeros(len(rows), dtype=np.int64) for name in ("lane", "flags", "seq")}
    spans = spans.with_columns(**{**spans.to_dict(), **rest, **columns})
    found = measure_host_steps(replace(run, spans=spans), "cnn", DEMAND)
    assert [(each.host, each.step.demand.flops / 2e6) for each in found] == [
        (f"cloud.trainer.1.{host}", size) for host in (1, 2) for size in (6, 32)
    ]
    assert [each.step.seconds for each in found] == pytest.approx([0.003, 0.006 + 0.0009 / 3] * 2)


@pytest.mark.parametrize(("rare_steps", "sizes"), [(4, [16]), (5, [6, 16])])
def test_a_rare_batch_size_is_left_out(rare_steps: int, sizes: list[int]) -> None:
    run = generate_run(spec())
    work = np.where(run.spans.step >= 60 - rare_steps, 6, 16)
    run = replace(run, spans=run.spans.with_columns(**{**run.spans.to_dict(), "work": work}))
    found = measure_host_steps(run, "cnn", DEMAND)
    assert [each.step.demand.flops / 2e6 for each in found] == sizes * 4


def test_a_short_run_gives_its_most_frequent_batch_size() -> None:
    run = generate_run(replace(spec(), steps=6))
    assert len(measure_host_steps(run, "cnn", DEMAND)) == 4


def test_a_large_run_is_read_in_parts(tmp_path: Path) -> None:
    folder = write_run(generate_run(spec()), tmp_path)
    at_once, in_parts = load_run(folder), load_run(folder, max_rows_in_memory=1)
    assert measure_host_steps(in_parts, "cnn", DEMAND) == measure_host_steps(at_once, "cnn", DEMAND)


@pytest.mark.parametrize("left", ["nothing", "warm-up", "communication", "another lane"])
def test_a_run_without_a_measured_step_is_refused(left: str) -> None:
    run = generate_run(spec())
    spans, columns = run.spans, run.spans.to_dict()
    match left:
        case "nothing":
            spans = spans.where(np.s_[:0])
        case "warm-up":
            flags = np.full(len(spans), int(Flag.WARM_UP))
            spans = spans.with_columns(**{**columns, "flags": flags})
        case "communication":
            spans = spans.where(spans.phase == Phase.COMM.code)
        case _:
            lane = np.full(len(spans), int(Lane.BACKGROUND))
            spans = spans.with_columns(**{**columns, "lane": lane})
    with pytest.raises(RunFolderError, match=r"no rank has completed a step .* give a run of more"):
        measure_host_steps(replace(run, spans=spans), "cnn", DEMAND)


def kinds(run: RunData) -> list[str]:
    return [str(each.kind) for each in measure_host_steps(run, "cnn", DEMAND)]


def test_hosts_of_one_processor_and_share_are_one_kind() -> None:
    run = generate_run(spec())
    run = replace(run, hosts=tuple(replace(host, device_class="cpu") for host in run.hosts))
    assert kinds(run) == ["cloud/cpu", "cloud/cpu", "edge/cpu at 25 %", "edge/cpu at 25 %"]
    local = with_machines(run, {"cpu": "Xeon"})
    assert kinds(local) == ["Xeon", "Xeon", "Xeon at 25 %", "Xeon at 25 %"]
    addresses = [host.address for host in run.hosts]
    remote = with_machines(
        run, *({"cpu": f"CPU {i // 2}", "machine": at} for i, at in enumerate(addresses))
    )
    assert kinds(remote) == ["CPU 0", "CPU 0", "CPU 1 at 25 %", "CPU 1 at 25 %"]
    unknown = with_machines(run, {"cpu": None})
    assert kinds(unknown) == kinds(run) == kinds(replace(run, record=None))


def test_a_gpu_is_a_kind_of_its_own() -> None:
    run = with_machines(generate_run(spec()), {"cpu": "Xeon"})
    hosts = tuple(replace(host, device_class="NVIDIA A100", cpu_share=1.0) for host in run.hosts)
    assert kinds(replace(run, hosts=hosts)) == ["NVIDIA A100"] * 4


def test_a_host_of_an_imported_trace_is_named_after_itself() -> None:
    run = replace(generate_run(spec()), record=None)
    hosts = tuple(replace(host, device_class="", tier="") for host in run.hosts)
    assert kinds(replace(run, hosts=hosts))[0] == "cloud.trainer.1.1"
    assert str(HostKind("Xeon", 0.125)) == "Xeon at 12.5 %"
