"""`laggard plan`: the description of a run, for a machine that is given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from laggard.remote.testbeds.ssh import SshTestbed
from laggard.scenario.bring_up import BringUp
from laggard.scenario.load import load_scenario
from laggard.scenario.run_plan import LocalMachine, RunPlan, plan_local_run, plan_remote_run
from tests.scenario.scenario_folders import template, write

MACHINE = LocalMachine(cores=(2, 3), links="userspace")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "mine", template())


INVENTORY = """\
machines:
  - {address: 10.9.0.1, hosts: "cloud.*"}
  - {address: 10.9.0.2, user: alice, port: 2222, gateway: gate.example.org}
  - {address: 10.9.0.3}
  - {address: 10.9.0.4}
"""


def test_machines_of_ones_own_are_described_and_not_this_one(folder: Path) -> None:
    scenario = load_scenario(folder)
    (inventory := folder / "hosts.yaml").write_text(INVENTORY)
    machines = SshTestbed(inventory).plan_machines(scenario)
    plan = plan_remote_run(scenario, machines.describe(), machines.addresses)
    assert [host.address for host in plan.hosts] == [f"10.9.0.{number}" for number in (1, 2, 3, 4)]
    assert (plan.cores, plan.usable_cores, plan.dilation, plan.backend) == (
        None,
        None,
        1.0,
        "netem",
    )
    text = plan.text()
    assert "fog.trainer.1.1    alice@10.9.0.2:2222  through gate.example.org" in text
    assert "edge.trainer.1.2   root@10.9.0.4" in text
    assert "host keys of the machines: accepted at first contact and recorded in your" in text
    assert "\nhere\n" not in text
    reservation = json.loads(plan.to_json())["reservation"]
    assert reservation["machines"][1] == {
        "host": "fog.trainer.1.1",
        "reached": "alice@10.9.0.2:2222",
        "gateway": "gate.example.org",
    }


def test_the_template_is_described(folder: Path) -> None:
    plan = plan_local_run(load_scenario(folder), MACHINE)
    assert [(host.name, host.cpu_share, host.ranks) for host in plan.hosts] == [
        ("cloud.trainer.1.1", 0.4, (0,)),
        ("fog.trainer.1.1", 0.2, (1,)),
        ("edge.trainer.1.1", 0.1, (2,)),
        ("edge.trainer.1.2", 0.1, (3,)),
    ]
    assert {host.core for host in plan.hosts} <= {2, 3}
    assert {(link.src_layer, link.dst_layer): (link.pairs, link.delay_ms, link.rate_mbps) for link in plan.links} == {
        ("edge", "fog"): (2, 5.0, 100.0), ("fog", "edge"): (2, 5.0, 100.0),
        ("edge", "cloud"): (2, 15.0, 50.0), ("cloud", "edge"): (2, 15.0, 50.0),
        ("fog", "cloud"): (1, 10.0, 200.0), ("cloud", "fog"): (1, 10.0, 200.0),
    }  # fmt: skip
    (event,) = plan.events
    assert (event.at_s, event.for_s, event.count, event.change) == (20.0, 10.0, 4, "rate 4 Mbit/s")
    assert plan.dilation == 1.0
    assert plan.stop == "accuracy 0.95 in 3 evaluations in a row or 300 steps or 300 s"


def test_text_and_json_say_the_same(folder: Path) -> None:
    plan = plan_local_run(load_scenario(folder), MACHINE)
    assert RunPlan.model_validate_json(plan.to_json()) == plan
    assert json.loads(plan.to_json())["backend"] == "userspace"
    text = plan.text()
    for expected in (
        "mine: 4 hosts, 4 workers",
        "edge.trainer.1.2",
        "10% of a core",
        "50 Mbit/s",
        "userspace emulator",
        "in real time",
    ):
        assert expected in text


def test_the_program_of_a_scenario_is_shown(tmp_path: Path) -> None:
    workflow = '- hosts: "edge.*"\n  launch:\n  - shell: "echo \\e[2Jhello"\n'
    scenario = load_scenario(write(tmp_path / "mine", template() | {"workflow": workflow}))
    plan = plan_local_run(scenario, MACHINE)
    (task,) = json.loads(plan.to_json())["program"]["tasks"]
    assert task["command"] == "echo \x1b[2Jhello"
    assert task["where"].endswith("workflow.yaml:3")
    assert RunPlan.model_validate_json(plan.to_json()) == plan
    (line,) = [line for line in plan.text().splitlines() if "edge.*" in line and "shell" in line]
    assert line.split("  ")[2:] == ["launch", "edge.*", "shell", "echo \\x1b[2Jhello"]


def test_more_than_the_machine_has_is_dilated(folder: Path) -> None:
    shares = [f"heterogeneity.deterministic.{i}.cpu=100%" for i in range(3)]
    plan = plan_local_run(load_scenario(folder, shares), MACHINE)
    assert plan.dilation >= 4 / 1.5
    assert "times slower" in plan.text()


def test_a_share_that_rises_later_counts(folder: Path) -> None:
    rise = [
        "heterogeneity.deterministic=[{hosts: '*', cpu: 10%}]",
        "heterogeneity.dynamic=[{at: 1s, for: 1s, hosts: '*', cpu: 100%}]",
    ]
    assert plan_local_run(load_scenario(folder, rise), MACHINE).dilation > 2


@pytest.mark.parametrize(
    ("event", "when", "change", "count"),
    [
        ("{at: 4s, for: 1s, hosts: 'edge.*', cpu: 5%}", "at 4 s for 1 s", "cpu 5%", 2),
        ("{at: 4s, for: 1s, src: 'edge.*', dst: 'fog.*', delay: 1ms, jitter: 1ms, loss: '2%'}", "at 4 s for 1 s", "delay 1 ms, loss 2 %, jitter 1 ms", 2),
        ("{random: {every: 30s, for: 5s, seed: 7}, hosts: 'edge.*', cpu: 5%}", "for 5 s in every 30 s, at different times on each host (seed 7)", "cpu 5%", 2),
        ("{random: {every: 30s, for: 5s, seed: 7}, src: 'edge.*', dst: 'edge.*', rate: 1mbit}", "for 5 s in every 30 s, at the same time on all links (seed 7)", "rate 1 Mbit/s", 2),
        ("{trace: lte.csv, src: 'edge.*', dst: 'fog.*', symmetric: true}", "throughout the run", "as in lte.csv", 4),
        ("{at: 4s, for: 1s, src: 'edge.*', dst: 'fog.*', down: true}", "at 4 s for 1 s", "down", 2),
        ("{at: 4s, for: 1s, src: 'edge.*', dst: 'fog.*', profile: lora}", "at 4 s for 1 s", "profile lora, uplink from edge.*", 4),
    ],
)  # fmt: skip
def test_every_kind_of_event_is_described(
    event: str, when: str, change: str, count: int, folder: Path
) -> None:
    (folder / "lte.csv").write_text("seconds,rate_mbps\n0,10\n")
    (described,) = plan_local_run(
        load_scenario(folder, [f"heterogeneity.dynamic=[{event}]"]), MACHINE
    ).events
    assert (described.when, described.change, described.count) == (when, change, count)


def test_a_distribution_is_told_where_it_is_not_the_usual(folder: Path) -> None:
    entry = "{src: 'edge.*', dst: 'fog.*', jitter: 1ms, distribution: pareto, symmetric: true}"
    text = plan_local_run(
        load_scenario(folder, [f"heterogeneity.deterministic=[{entry}]"]), MACHINE
    ).text()
    assert "± 1 ms (pareto)" in text
    bursty = "{src: 'edge.*', dst: 'fog.*', burst: 5}"
    lossy = [
        "network.networks.0.loss=1%",
        "network.networks.1.loss=1%",
        "network.networks.2.loss=1%",
    ]
    text = plan_local_run(
        load_scenario(folder, [f"heterogeneity.deterministic=[{bursty}]", *lossy]), MACHINE
    ).text()
    assert "1 % loss in bursts of 5" in text


def test_this_machine_can_be_asked(folder: Path) -> None:
    plan = plan_local_run(load_scenario(folder))
    assert plan.cores >= 1
    assert plan.backend in ("netem", "userspace")


def test_warnings_are_repeated(folder: Path) -> None:
    plan = plan_local_run(load_scenario(folder, ["network.networks=[]"]), MACHINE)
    assert plan.links == ()
    assert "warning:" in plan.text()


def test_bring_up_takes_longer_with_more_dilation() -> None:
    """The estimate has a part for each stage; side by side, only the longest counts."""
    parts = BringUp(1.0, 3.0, 5.0, 4.0, 2.0, overlaps=True)
    assert parts.total_s == 1.0 + 5.0 + 2.0
    assert replace(parts, overlaps=False).total_s == 1.0 + 5.0 + 4.0 + 2.0


def test_the_plan_tells_how_long_bring_up_takes(folder: Path) -> None:
    quick = plan_local_run(load_scenario(folder), MACHINE)
    whole = plan_local_run(load_scenario(folder, ["heterogeneity.deterministic=[]"]), MACHINE)
    assert quick.bring_up_s is not None
    assert whole.bring_up_s is not None
    assert f"begins after about {quick.bring_up_s:.0f} s" in quick.text()
    assert whole.dilation > quick.dilation
    on_one = plan_local_run(
        load_scenario(folder), LocalMachine(cores=(2,), links="userspace", reserved_cores=0.5)
    )
    assert on_one.bring_up_s is not None
