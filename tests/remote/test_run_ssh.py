"""`--on ssh`, end to end: machines with real SSH servers and clocks of their own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from laggard.core.span_schema import Phase
from laggard.network_emulation.links.netem.filters import by_address
from laggard.workloads.tracing.row_types import STEP_ROW
from laggard.workloads.tracing.stream import RowStream
from tests.remote.remote_scenario import run_script
from tests.testbed.networks import ipv6_of
from tests.testbed.nodes import lacking
from tests.users import Runner

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.remote,
    pytest.mark.timeout(1200),
]

OFFSETS_S = {"cloud.trainer.1.1": 1.5, "edge.trainer.1.1": 40.25, "edge.trainer.1.2": 1000.0}

SCRIPT = """
    import dataclasses, shutil
    def play():
        with ssh_machines(OFFSETS, install_once(wheels), bare=(2,)) as (nodes, names, options, on):
            def left(name):
                shaped = on(name, "tc", "qdisc", "show") + on(name, "tc", "filter", "show", "dev", "eth0", "ingress")
                devices = on(name, "ip", "-o", "-d", "link", "show")
                return [shaped, devices, on(name, "ls", "-A", "/var/tmp/laggard-root/runs"),
                        on(name, "pgrep", "-f", "laggard.remote")]

            def run_experiment(options):
                import pyarrow.parquet as pq
                from laggard.remote.run import run_remote
                from laggard.scenario.load import load_scenario
                plain = dataclasses.replace(options, for_s=1.0)
                folder = here / "experiment"
                shutil.copytree(scenario_folder, folder, ignore=shutil.ignore_patterns("workload.yaml"))
                (folder / "workflow.yaml").write_text(json.dumps(PLAYS))
                record, made = run_remote(load_scenario(folder), plain)
                assert (made / "events.parquet").exists(), record.model_dump_json()
                events = pq.read_table(made / "events.parquet").num_rows
                fetched = {path.name: path.read_text() for path in (made / "workflow").glob("*.example.org*")}
                return {**record.model_dump(mode="json"), "events": events, "fetched": fetched}

            def run_schedule():
                (here / "cluster.yaml").write_text(json.dumps(CLUSTER | {"layers": str(scenario_folder)}))
                (here / "job.yaml").write_text((scenario_folder / "workload.yaml").read_text())
                words = ["schedule", here / "cluster.yaml", "--on", "ssh", "--hosts", here / "inventory.yaml"]
                done = subprocess.run([sys.executable, "-m", "laggard", *words, "--runs", here / "runs", "--json"],
                                      capture_output=True, text=True)
                assert done.returncode == 0, done.stderr
                return json.loads(done.stdout)

            long = ("workload.stop={steps: 100000, time: 90s}",)
            before = on(names[1], "ip", "-o", "-d", "link", "show")
            found = {"whole": run(dataclasses.replace(options, report=True), LIMITS, EVENTS), "left": {name: left(name) for name in names}, "before": before}
            found["schedule"] = run_schedule()
            found["experiment"] = run_experiment(options)
            found["served"] = run(options, *SERVED)
            found["paid"] = run(options, *PAID)
            streamed = "cat /var/tmp/laggard-root/runs/*/workers/rank-2.steps.arrow | wc -c"
            kill = "pkill -9 -x rank-2"
            kill_one = lambda: on(names[2], f"until [ $({streamed}) -gt EMPTY ]; do sleep 0.05; done; {kill}")
            found["meshed"] = run(options, *MESHED, strike=kill_one)
            shown = {}

            def look(key, name, *words):
                shown[key] = on(name, "tc", "filter", "show", "dev", "eth0", *words)

            def kill():
                look("sent", names[0])
                on(names[2], "pkill", "-9", "-x", "rank-2")

            def unplug():
                look("received", names[1], "ingress")
                nodes.unplug(names[1])

            found["killed"] = run(options, *long, strike=kill)
            found["hung"] = run(options, *long, strike=lambda: on(names[1], "pkill", "-STOP", "-x", "rank-1"))
            found["unplugged"] = run(options, *long, SLOW, strike=unplug)
            found["filters"] = shown
            nodes.plug(names[1])
            found["too little"] = run(options, "network.networks.0.delay=0.001ms")
            until = time.monotonic() + 90  # an agent waits a minute for its controller
            while on(names[1], "pgrep", "-f", "laggard.remote") and time.monotonic() < until:
                time.sleep(0.2)
            found["left unplugged"] = left(names[1])[:2]
            return found

    inside(play)
"""


PLAYS = [
    {
        "hosts": "edge.*",
        "gather_facts": False,
        "launch": [{"shell": "sleep 2; cat /etc/hostname > /tmp/made"}],
        "finalize": [
            {
                "fetch": {
                    "src": "/tmp/made",
                    "dest": "{{ working_dir }}/{{ inventory_hostname }}.example.org",
                    "flat": True,
                }
            }
        ],
    }
]
ROUND_S, ONE_STEPS, TWO_STEPS = 3, 1500, 40
CLUSTER: dict[str, object] = {
    "round": f"{ROUND_S}s",
    "reallocate": f"{ROUND_S}s",
    "policy": "las",
    "jobs": [
        {"name": "one", "workload": "job.yaml", "steps": ONE_STEPS, "throughput": {"cloud": 600}},
        {
            "name": "two",
            "workload": "job.yaml",
            "steps": TWO_STEPS,
            "scale": 2,
            "throughput": {"edge": 40},
        },
    ],
}
SLOW = "heterogeneity.deterministic=[{hosts: edge.trainer.1.1, downlink: 30mbit}]"
LIMITED = "{hosts: edge.trainer.1.2, cpu: 25%, read: 1MB/s, read_latency: 2ms, memory: 2GiB}"
LIMITS = f"{SLOW[:-1]}, {LIMITED}]"
EVENTS = (
    'heterogeneity.dynamic=[{at: 1s, for: 1s, src: "cloud.*", dst: "edge.*", rate: 20mbit},'
    " {at: 1s, for: 1s, hosts: edge.trainer.1.2, read: 100kB/s}]"
)
SERVED = (
    "heterogeneity={}",
    "workload.strategy=asynchronous",
    'workload.placement={workers: ["cloud.*", edge.trainer.1.1], server: edge.trainer.1.2}',
    "workload.evaluate_every=12000",
    "workload.stop={accuracy: 0.9, time: 60s}",
)
PAID = (
    "heterogeneity={}",
    "workload.strategy={name: federated, clients: 2, tokens: {fee: 10}}",
    'workload.placement={workers: ["edge.*"], server: "cloud.*"}',
    "workload.stop={steps: 4}",
)
MESHED = (
    "heterogeneity={}",
    "network.networks=[]",
    "workload.strategy=gossip",
    "workload.evaluate_every=18000",
    "workload.stop={steps: 900}",
)
FETCHED_BYTES = 192 // 3 * 64
"""A rank's part of a batch of digits."""


def _bytes_without_rows(folder: Path) -> int:
    """Of a rank's stream of steps: one that has more had been written to before its rank was
    killed."""
    stream = RowStream(folder / "empty.arrow", STEP_ROW)
    stream.close()
    return (folder / "empty.arrow").stat().st_size


def test_a_scenario_runs_on_machines_of_ones_own(own_runner: Runner, tmp_path: Path) -> None:
    script = (
        SCRIPT.replace("OFFSETS", repr(list(OFFSETS_S.values())))
        .replace("LIMITS", repr(LIMITS))
        .replace("EVENTS", repr(EVENTS))
        .replace("SLOW", repr(SLOW))
        .replace("PLAYS", repr(PLAYS))
        .replace("CLUSTER", repr(CLUSTER))
        .replace("SERVED", repr(SERVED))
        .replace("MESHED", repr(MESHED))
        .replace("PAID", repr(PAID))
        .replace("EMPTY", str(_bytes_without_rows(tmp_path)))
    )
    found = run_script(own_runner, script, timeout_s=1100)
    whole = found["whole"]
    assert whole["status"] in {"done", "unfaithful"}, whole["error"]
    _traces_came_home(Path(whole["folder"]))
    _clocks_are_right(Path(whole["folder"]))
    _links_held(Path(whole["folder"]))
    _storage_and_memory_held(Path(whole["folder"]))
    for shaped, devices, runs, processes in found["left"].values():
        assert not re.search("htb|tbf|ingress|filter", shaped)
        assert "laggard" not in devices
        assert re.findall(r"gso_max_segs \d+", devices) == re.findall(
            r"gso_max_segs \d+", found["before"]
        )
        assert (runs, processes) == ("", "")
    _jobs_take_turns(found["schedule"])
    _plays_are_an_experiment(found["experiment"])
    _ipv6_is_shaped(found["filters"])
    _a_server_of_its_own_serves(found["served"])
    assert found["paid"]["status"] in {"done", "unfaithful"}, found["paid"]["error"]
    ledger = Path(found["paid"]["folder"]) / "ledger.jsonl"
    assert len(ledger.read_text().splitlines()) == 2 * 2 * 4, "a fee and a payment of two clients"
    _the_others_go_on(found["meshed"])
    assert found["killed"]["seconds"]["prepare nodes"] < whole["seconds"]["prepare nodes"], (
        "the environment was there"
    )
    assert found["killed"]["status"] == "failed"
    assert "rank-2 died (killed by signal 9)" in found["killed"]["error"]
    assert "rank 1 on edge.trainer.1.1: hangs" in found["hung"]["error"]
    assert found["unplugged"]["status"] == "failed", found["unplugged"]["error"]
    assert "edge.trainer.1.1" in found["unplugged"]["error"]
    shaped, devices = found["left unplugged"]
    assert not re.search("htb|tbf|ingress|filter", shaped), (
        "a node without its controller clears up by itself"
    )
    assert "laggard" not in devices
    assert found["too little"]["status"] == "failed"
    assert "sch_netem" in found["too little"]["error"]


def _ipv6_is_shaped(shown: dict[str, str]) -> None:
    """What the nodes have of IPv6, link-local addresses too, is steered and redirected as their
    IPv4 is."""
    sent = by_address(shown["sent"], "dst")
    for address in ("172.30.0.2", "172.30.0.3"):
        alike = [peer for peer, each in sent.items() if each.flow == sent[address].flow]
        assert {address, ipv6_of(address)} < set(alike)
        assert len([peer for peer in alike if peer.startswith("fe80:")]) == 1
    received = by_address(shown["received"], "src")
    assert {"172.30.0.1", "172.30.0.3", ipv6_of("172.30.0.1"), ipv6_of("172.30.0.3")} < set(
        received
    )
    assert {each.device for each in received.values()} == {"laggard-in0"}


def _traces_came_home(folder: Path) -> None:
    steps = pq.read_table(folder / "steps.parquet")
    assert sorted(set(steps["rank"].to_pylist())) == [0, 1, 2]
    assert max(steps["step"].to_pylist()) == 89
    assert (folder / "report.html").exists()
    assert (folder / "checkpoint.pt").exists()
    assert not (folder / "workers").exists()
    assert len(json.loads((folder / "run.json").read_text())["hosts"]) == 3


def _jobs_take_turns(document: dict[str, Any]) -> None:
    """Two jobs train on machines of their own, in rounds and from checkpoint to checkpoint."""
    turns = document["turns"]
    assert [turn["problem"] for turn in turns] == [""] * len(turns)
    cloud, *edge = OFFSETS_S
    for job, steps, hosts in (("one", ONE_STEPS, [cloud]), ("two", TWO_STEPS, edge)):
        own = [turn for turn in turns if turn["job"] == job]
        assert sum(turn["steps"] for turn in own) == steps
        assert all(turn["hosts"] == hosts for turn in own)
        # Only a machine that is fast enough finishes a job within its first round.
        assert len(own) >= 2 or own[0]["took_s"] < ROUND_S


def _clocks_are_right(folder: Path) -> None:
    """The nodes' clocks are off by known amounts, and a collective ends everywhere at about the
    same time."""
    hosts = pq.read_table(folder / "hosts.parquet").to_pylist()
    head_s = OFFSETS_S[hosts[0]["host"]]
    for host in hosts:
        true_ns = (head_s - OFFSETS_S[host["host"]]) * 1e9
        assert abs(host["clock_offset_ns"] - true_ns) <= host["clock_error_ns"] < 2_000_000
    spans = pq.read_table(folder / "spans.parquet").to_pandas()
    comm = spans[(spans.phase == Phase.COMM.value) & (spans.lane == 0) & (spans.step >= 5)]
    ends = (comm.start_ns + comm.dur_ns).groupby(comm.step)
    assert float(np.median(ends.max() - ends.min())) < 1e9, "the clocks differ by minutes"


def _a_server_of_its_own_serves(run: dict[str, Any]) -> None:
    """On a node without a rank, it keeps the model, has it evaluated there, and lets the ranks of
    the other two go."""
    assert run["status"] in {"done", "unfaithful"}, run["error"]
    assert run["outcome"]["stopped_by"] == "accuracy"
    assert run["outcome"]["accuracy"] >= 0.9
    folder = Path(run["folder"])
    steps = pq.read_table(folder / "steps.parquet").to_pandas()
    assert set(steps["rank"]) == {0, 1}
    assert run["outcome"]["accuracy"] in set(steps.accuracy), (
        "evaluations stand where the pushes were that they came after"
    )
    cloud, edge, serving = OFFSETS_S
    links = pq.read_table(folder / "links.parquet").to_pandas()
    assert {(cloud, serving), (serving, cloud), (serving, edge)} <= set(
        zip(links.src, links.dst, strict=True)
    )
    counters = json.loads((folder / "counters.json").read_text())
    payload = {each["node"]: each["payload_bytes"] for each in counters["traffic"]}
    assert set(payload) == {0, 1, 2}
    carried = {(link["src"], link["dst"]): link["bytes"] for link in counters["links"]}
    assert carried[cloud, serving] == pytest.approx(payload[0], rel=0.2), (
        "shaped, with TCP's headers"
    )


def _plays_are_an_experiment(run: dict[str, Any]) -> None:
    """Without a workload, the plays run on the shaped links, with the timed events."""
    assert run["status"] in {"done", "unfaithful"}, run["error"]
    stages = [stage["name"] for stage in run["stages"]]
    expected = ["verify links", "workflow: launch", "up", "workflow: finalize", "report"]
    assert [stage for stage in stages if stage in expected] == expected
    assert run["events"] > 0
    assert set(run["fetched"]) == {f"edge.trainer.1.{i}.example.org" for i in (1, 2)}
    assert all(run["fetched"].values())


def _the_others_go_on(run: dict[str, Any]) -> None:
    """A rank that is killed is dropped; the coordinator counts the others' steps, has their models,
    and ends them together."""
    assert run["status"] in {"done", "unfaithful"}, run["error"]
    assert run["lost_ranks"] == [2]
    assert run["outcome"]["stopped_by"] == "steps"
    assert run["outcome"]["accuracy"] > 0.95
    folder = Path(run["folder"])
    steps = pq.read_table(folder / "steps.parquet").to_pandas()
    last = steps.groupby("rank").end_ns.max()
    assert last[2] < min(last[0], last[1])
    assert abs(last[0] - last[1]) < 1e9, "by one clock; the nodes' own differ by minutes"
    assert steps.samples.sum() > 0.9 * (900 // 8) * 1437, (
        "an epoch is 8 steps; what rank 2 had not streamed is lost"
    )
    traffic = json.loads((folder / "counters.json").read_text())["traffic"]
    assert [each["node"] for each in traffic] == [0, 1]


def _links_held(folder: Path) -> None:
    checks = json.loads((folder / "fidelity.json").read_text())
    rates = {
        (check["src"], check["dst"]): check["requested"]
        for check in checks
        if check["kind"] == "rate"
    }
    cloud, slow, other = OFFSETS_S
    assert rates == {
        (cloud, slow): 30.0,
        (cloud, other): 60.0,
        (slow, cloud): 60.0,
        (other, slow): 30.0,
    }
    shares = [check for check in checks if check["kind"] == "cpu"]
    assert {(check["src"], check["requested"]) for check in shares} == {(other, 4.0)}
    events = pq.read_table(folder / "events.parquet").to_pylist()
    assert {event["value"] for event in events if event["dst"]} == {20.0, 60.0}
    late_s = [event["effective_s"] - event["requested_s"] for event in events]
    assert all(each >= 0 for each in late_s), late_s
    counters = json.loads((folder / "counters.json").read_text())
    assert sum(link["bytes"] for link in counters["links"]) > 1e6
    assert {(link["src"], link["dst"]) for link in counters["links"]} >= set(rates)


def _storage_and_memory_held(folder: Path) -> None:
    """Every fetch takes the latency and the bytes over the bandwidth, which an event lowers for a
    second."""
    slow = list(OFFSETS_S)[2]
    checks = [
        check
        for check in json.loads((folder / "fidelity.json").read_text())
        if check["kind"] == "storage"
    ]
    assert {(check["src"], check["unit"], check["requested"]) for check in checks} == {
        (slow, "MB/s", 1.0),
        (slow, "ms", 2.0),
    }
    events = pq.read_table(folder / "events.parquet").to_pylist()
    begin, end = (event for event in events if event["quantity"] == "read_mb_per_s")
    assert [(event["src"], event["value"]) for event in (begin, end)] == [(slow, 0.1), (slow, 1.0)]
    spans = pq.read_table(folder / "spans.parquet").to_pandas()
    fetches = spans[
        (spans.phase == Phase.FETCH.value)
        & (spans["rank"] == 2)
        & (spans.work == FETCHED_BYTES // 64)
    ]
    error_ns = 5e6  # of the node's clock, and of the controller's
    after_ns, before_ns = begin["effective_s"] * 1e9 + error_ns, end["effective_s"] * 1e9 - error_ns
    within = (fetches.start_ns >= after_ns) & (fetches.start_ns + fetches.dur_ns <= before_ns)
    outside = (fetches.start_ns + fetches.dur_ns < after_ns) | (fetches.start_ns > before_ns)
    assert within.any()
    assert fetches[within].dur_ns.min() / 1e6 >= 2 + FETCHED_BYTES / 0.1e6 * 1e3 - 0.01
    assert fetches[outside].dur_ns.min() / 1e6 >= 2 + FETCHED_BYTES / 1e6 * 1e3 - 0.01
    counters = json.loads((folder / "counters.json").read_text())
    (drive,) = counters["drives"]
    assert (drive["host"], drive["read_accesses"]) == (slow, len(set(spans.step)))
    (memory,) = counters["memory"]
    assert memory["host"] == slow
    assert 100 << 20 < memory["peak_bytes"] < 2 << 30
