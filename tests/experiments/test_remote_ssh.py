"""`--on ssh`, end to end: machines with real SSH servers and clocks of their own."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from laggard.span_schema import Phase
from tests.experiments.remote_bed import answer_of
from tests.testbed.nodes import lacking
from tests.users import Runner

pytestmark = [pytest.mark.skipif(lacking() is not None, reason=str(lacking())), pytest.mark.slow]

OFFSETS_S = {"cloud.trainer.1.1": 1.5, "edge.trainer.1.1": 40.25, "edge.trainer.1.2": 1000.0}

SCRIPT = """
    from laggard.experiments.remote.ground import RemoteOptions
    from tests.testbed.nodes import NodeSpec, start_nodes

    def play():
        private_ssh(here / "ssh")
        names = [f"node-{i}.example.org" for i in (1, 2, 3)]
        offsets = OFFSETS
        specs = [NodeSpec(n, f"172.30.0.{i}", "home", clock_offset_s=o) for i, (n, o) in enumerate(zip(names, offsets), 1)]
        with start_nodes(specs, here / "nodes") as nodes:
            listed = [
                {"ssh": n, "address": nodes.node(n).spec.address, "key": str(nodes.node(n).access.key), "site": "home"}
                for n in names
            ]
            (here / "inventory.yaml").write_text(json.dumps({"machines": listed}))
            options = RemoteOptions(here / "runs", "ssh", here / "inventory.yaml", quiet=True)

            def on(name, *words):
                ssh = ["ssh", *nodes.node(name).access.ssh_arguments(), *words]
                return subprocess.run(ssh, capture_output=True, text=True).stdout

            def left(name):
                return [on(name, "tc", "qdisc", "show", "dev", "eth0"), on(name, "ls", "-A", "/var/tmp/laggard-root/runs"),
                        on(name, "pgrep", "-f", "laggard.experiments.remote")]

            long = ("workload.stop={steps: 100000, time: 90s}",)
            found = {"whole": run(options), "left": left(names[1])}
            found["killed"] = run(options, *long, strike=lambda: on(names[2], "pkill", "-9", "-x", "rank-2"))
            found["hung"] = run(options, *long, strike=lambda: on(names[1], "pkill", "-STOP", "-x", "rank-1"))
            found["unplugged"] = run(options, *long, strike=lambda: nodes.unplug(names[1]))
            nodes.plug(names[1])
            found["too little"] = run(options, "network.networks.0.delay=0.001ms")
            return found

    inside(play)
"""


def test_a_scenario_runs_on_machines_of_ones_own(own_runner: Runner) -> None:
    found = answer_of(own_runner, SCRIPT.replace("OFFSETS", repr(list(OFFSETS_S.values()))), timeout_s=500)
    whole = found["whole"]
    assert whole["status"] == "done", whole["error"]
    _traces_came_home(Path(whole["folder"]))
    _clocks_are_right(Path(whole["folder"]))
    _links_held(Path(whole["folder"]))
    qdisc, runs, processes = found["left"]
    assert "htb" not in qdisc
    assert (runs, processes) == ("", "")
    assert found["killed"]["seconds"]["prepare nodes"] < 5, "the environment was there"
    assert found["killed"]["status"] == "failed"
    assert "rank-2 died (killed by signal 9)" in found["killed"]["error"]
    assert "rank 1 hangs" in found["hung"]["error"]
    assert found["unplugged"]["status"] == "failed"
    assert "edge.trainer.1.1" in found["unplugged"]["error"]
    assert found["unplugged"]["seconds"]["train"] < 60
    assert found["too little"]["status"] == "failed"
    assert "sch_netem" in found["too little"]["error"]


def _traces_came_home(folder: Path) -> None:
    steps = pq.read_table(folder / "steps.parquet")
    assert sorted(set(steps["rank"].to_pylist())) == [0, 1, 2]
    assert max(steps["step"].to_pylist()) == 89
    assert (folder / "report.html").exists()
    assert (folder / "checkpoint.pt").exists()
    assert not (folder / "spool").exists()
    assert len(json.loads((folder / "run.json").read_text())["hosts"]) == 3


def _clocks_are_right(folder: Path) -> None:
    """The nodes' clocks are off by known amounts, and a collective ends everywhere at about the same time."""
    hosts = pq.read_table(folder / "hosts.parquet").to_pylist()
    head_s = OFFSETS_S[hosts[0]["host"]]
    for host in hosts:
        true_ns = (head_s - OFFSETS_S[host["host"]]) * 1e9
        assert abs(host["clock_offset_ns"] - true_ns) <= host["clock_error_ns"] < 2_000_000
    spans = pq.read_table(folder / "spans.parquet").to_pandas()
    comm = spans[(spans.phase == Phase.COMM.value) & (spans.lane == 0) & (spans.step >= 5)]
    ends = (comm.start_ns + comm.dur_ns).groupby(comm.step)
    assert float(np.median(ends.max() - ends.min())) < 20e6


def _links_held(folder: Path) -> None:
    checks = json.loads((folder / "fidelity.json").read_text())
    rates = [check for check in checks if check["kind"] == "rate"]
    assert len(rates) == 2
    assert all(check["ok"] for check in checks), checks
    events = pq.read_table(folder / "events.parquet").to_pylist()
    assert {event["value"] for event in events} == {20.0, 60.0}
    assert all(0 <= event["effective_s"] - event["asked_s"] < 0.5 for event in events)
    counters = json.loads((folder / "counters.json").read_text())
    assert sum(link["bytes"] for link in counters["links"]) > 1e6
