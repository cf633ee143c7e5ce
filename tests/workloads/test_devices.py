"""Which device and which way between the ranks; and, where there is a GPU, that training on it is
training."""

from __future__ import annotations

import json
import textwrap
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import nn

from laggard.core.errors import InputError
from laggard.core.span_schema import Flag, Lane
from laggard.remote.agent_plans import build_agent_plans
from laggard.scenario.load import load_scenario
from laggard.workloads.devices import (
    choose_backend,
    collective_environment,
    on_devices,
    plan_devices,
)
from laggard.workloads.models.model_state import load_state, save_state
from laggard.workloads.plan import WorkerPlan, plan_workers
from laggard.workloads.workload import Workload
from tests.workloads.conftest import make_hosts
from tests.workloads.test_allreduce import run_case

if TYPE_CHECKING:
    from tests.workloads.conftest import Forkery, Train, Training

REPOSITORY = Path(__file__).resolve().parents[2]
QUICKSTART = {
    "model": "resnet8",
    "dataset": "digits",
    "batch_size": 256,
    "optimizer": {"lr": 0.0015},
}
SHORT = {"model": "mlp", "dataset": "digits", "batch_size": 128, "stop": {"steps": 2}}


@pytest.mark.parametrize(
    ("ranks", "gpus", "devices", "backend"),
    [
        ("a b", {}, "cpu cpu", "gloo"),
        ("a b", {"a": 0, "b": 0}, "cpu cpu", "gloo"),
        ("a b", {"a": 1, "b": 4}, "cuda:0 cuda:0", "nccl"),
        ("a a b b", {"a": 2, "b": 2}, "cuda:0 cuda:1 cuda:0 cuda:1", "nccl"),
        ("a b a b", {"a": 2, "b": 2}, "cuda:0 cuda:0 cuda:1 cuda:1", "nccl"),
        ("a b", {"a": 1}, "cuda:0 cpu", "gloo"),
        ("a a b b", {"a": 8}, "cuda:0 cuda:1 cpu cpu", "gloo"),
        ("a", {"a": 1, "idle": 0}, "cuda:0", "nccl"),
    ],
)
def test_every_rank_has_a_device_of_its_own(
    ranks: str, gpus: dict[str, int], devices: str, backend: str
) -> None:
    planned = plan_devices(ranks.split(), gpus)
    assert planned == tuple(devices.split())
    assert choose_backend(planned) == backend


@pytest.mark.parametrize(
    ("ranks", "gpus", "says"),
    [
        ("a a", {"a": 1}, "placement.per_host 2: a has 1 GPU, .* lower placement.per_host to 1"),
        (
            "a a a b b b",
            {"b": 2},
            "placement.per_host 3: b has 2 GPUs, .* lower placement.per_host to 2",
        ),
        (
            "a a a b b b",
            {"a": 2, "b": 1},
            "placement.per_host 3: b has 1 GPU, .* lower placement.per_host to 1",
        ),
    ],
)
def test_more_ranks_than_gpus(ranks: str, gpus: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        plan_devices(ranks.split(), gpus)


def workers(gpus: Mapping[str, int]) -> tuple[WorkerPlan, ...]:
    hosts = make_hosts(2)
    planned = plan_workers(
        Workload.model_validate(SHORT), hosts, Path("/workers"), interface="eno1"
    )
    return on_devices(planned, gpus)


def test_plans_are_of_the_processor_unless_said_otherwise() -> None:
    hosts = make_hosts(2)
    planned = plan_workers(
        Workload.model_validate(SHORT), hosts, Path("/workers"), interface="eno1"
    )
    assert {(plan.device, plan.backend) for plan in planned} == {("cpu", "gloo")}
    assert workers({}) == planned


def test_what_workers_are_told_of_their_way_to_each_other() -> None:
    gloo = {"GLOO_SOCKET_IFNAME": "eno1", "TORCH_GLOO_LAZY_INIT": "1"}
    assert collective_environment(workers({})[1]) == gloo
    relayed = workers({})[1].model_copy(update={"relayed": True})
    assert collective_environment(relayed) == {"GLOO_SOCKET_IFNAME": "eno1"}
    first, second = (host.name for host in make_hosts(2))
    on_gpu, on_cpu = (collective_environment(plan) for plan in workers({first: 1}))
    assert on_gpu == {**gloo, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert on_cpu == gloo
    assert collective_environment(workers({first: 1, second: 1})[1]) == {
        "GLOO_SOCKET_IFNAME": "eno1",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_SOCKET_IFNAME": "=eno1",
        "NCCL_SOCKET_FAMILY": "AF_INET",
        "NCCL_NET": "Socket",
        "NCCL_NET_PLUGIN": "none",
        "NCCL_IB_DISABLE": "1",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_HOSTID": second,
    }


def test_agents_are_told_devices_by_what_their_nodes_have() -> None:
    scenario = load_scenario(REPOSITORY / "experiments/quickstart")
    folders = {host.name: f"/runs/{host.name}" for host in scenario.hosts}
    cloud = {host.name: 2 for host in scenario.hosts if host.layer == "cloud"}
    told = {
        name: plan.workers for name, plan in build_agent_plans(scenario, folders, cloud).items()
    }
    assert cloud
    for name, plans in told.items():
        assert [plan.device for plan in plans] == ["cuda:0" if name in cloud else "cpu"]
        assert [(plan.backend, plan.relayed) for plan in plans] == [("gloo", True)]


def test_a_state_is_saved_whole(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    state = model.state_dict()
    save_state(
        {"step": 7, "model": state, "optimizer": {"param_groups": [{"lr": 0.1}], "state": {}}},
        tmp_path / "s",
    )
    loaded = load_state(tmp_path / "s")
    assert loaded["step"] == 7
    assert loaded["optimizer"] == {"param_groups": [{"lr": 0.1}], "state": {}}
    found = loaded["model"]
    assert isinstance(found, OrderedDict)
    assert found._metadata == state._metadata
    assert all(torch.equal(found[name], state[name]) for name in state)


def test_a_state_of_a_gpu_is_read_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is as torch writes it for a tensor on the first GPU: only the name of the place
    differs."""
    with monkeypatch.context() as patch:
        patch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
        torch.save({"weight": torch.arange(3.0)}, tmp_path / "s")
    assert b"cuda:0" in (tmp_path / "s").read_bytes()
    weight = load_state(tmp_path / "s")["weight"]
    assert isinstance(weight, torch.Tensor)
    assert (weight.device.type, weight.tolist()) == ("cpu", [0.0, 1.0, 2.0])


def test_the_device_is_waited_for_at_the_end_of_every_phase(
    forkery: Forkery, tmp_path: Path
) -> None:
    """In the phase itself, for then the wait belongs to it: broadcast, forward, backward,
    all-reduce, optimizer."""
    run_case(forkery, "settled", tmp_path, 1)
    assert json.loads((tmp_path / "settled.json").read_text()) == [
        "comm",
        "forward",
        "backward",
        "comm",
        "optimizer",
    ]


def test_the_table_of_hosts_names_the_devices(train: Train) -> None:
    training = train(SHORT, 2)
    assert training.table("hosts").device_class.tolist() == ["cpu", "cpu"]
    training.output_dir.device_class(1).write_text("NVIDIA A100")
    assert training.table("hosts").device_class.tolist() == ["cpu", "NVIDIA A100"]


def test_a_gpu_that_cannot_be_used_is_told_of_at_once(train: Train) -> None:
    training = train(SHORT, 1, wait=False, change={"device": "cuda:99"})
    assert training.forkery.wait(training.pids) == [1]
    training.output_dir.done.touch()
    training.forkery.wait(training.aside, 0)
    assert "edge.trainer.1.1: cuda:99 cannot be used: " in training.log("0").read_text()
    assert "choose other nodes" in training.log("0").read_text()


def losses(training: Training) -> Sequence[float]:
    found: list[float] = training.table("steps").sort_values(["rank", "step"]).loss.tolist()
    return found


@pytest.mark.gpu
@pytest.mark.parametrize(("world_size", "backend"), [(1, "nccl"), (2, "gloo")])
def test_a_gpu_learns_what_the_processor_learns(
    train: Train, world_size: int, backend: str
) -> None:
    """NCCL alone, since this asks for one GPU; over gloo two ranks share it. The phases of every
    step tile it."""
    workload = {**QUICKSTART, "stop": {"steps": 10}}
    on_gpu = train(workload, world_size, change={"device": "cuda:0", "backend": backend})
    np.testing.assert_allclose(losses(on_gpu), losses(train(workload, world_size)), rtol=1e-3)
    assert set(on_gpu.table("hosts").device_class) == {torch.cuda.get_device_name(0)}
    spans, steps = on_gpu.table("spans"), on_gpu.table("steps").set_index(["rank", "step"])
    order = ["fetch", "prep", "h2d", "comm", "forward", "backward", "comm", "optimizer"]
    for key, of_step in spans[spans.phase != "evaluate"].groupby(["rank", "step"]):
        assert [phase for phase in of_step.sort_values("seq").phase if phase != "other"] == order
        assert of_step.start_ns.min() == steps.start_ns[key]
        assert of_step.dur_ns.sum() <= steps.end_ns[key] - steps.start_ns[key]


FASTEST_GPU_FLOPS = 2e14
WIDE = """
import numpy as np
from torch import nn

def model(shape, classes):
    wide = [layer for _ in range(6) for layer in (nn.Linear(4096, 4096), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 4096), nn.ReLU(), *wide, nn.Linear(4096, classes))
"""


@pytest.mark.gpu
def test_a_phase_lasts_as_long_as_the_gpu_computes(train: Train, tmp_path: Path) -> None:
    """No GPU multiplies 32-bit numbers faster than this, and a backward pass has twice as many
    products; launching them takes a fraction of it."""
    (tmp_path / "wide_workload.py").write_text(textwrap.dedent(WIDE))
    workload = {
        "model": "wide_workload:model",
        "dataset": "digits",
        "batch_size": 1437,
        "stop": {"steps": 20},
    }
    training = train(workload, 1, path=tmp_path, change={"device": "cuda:0", "backend": "nccl"})
    spans = training.table("spans")
    usual = (
        spans[(spans.lane == Lane.MAIN) & (spans["flags"] & int(Flag.WARM_UP) == 0)]
        .groupby("phase")
        .dur_ns.median()
    )
    least_ns = 2 * 1437 * 6 * 4096**2 / FASTEST_GPU_FLOPS * 1e9
    assert usual["forward"] > least_ns
    assert usual["backward"] > 2 * least_ns
