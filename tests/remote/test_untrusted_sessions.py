"""A node that lies over real SSH, beside honest ones: nothing is written outside of the run's
folder, and what the others have is collected."""

from __future__ import annotations

import pytest

from tests.faults import Fault, holds
from tests.remote.remote_scenario import run_script
from tests.testbed.nodes import lacking
from tests.users import Runner

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.remote,
]

AGENT = '''
"""An agent that answers as told: `honest`, or a way of lying."""
import hashlib, json, pathlib, sys, time

way, folder = sys.argv[1], pathlib.Path(sys.argv[2])


def say(**message):
    sys.stdout.write(json.dumps(message) + "\\n")
    sys.stdout.flush()


def manifest():
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = {
        str(path.relative_to(folder)): {
            "size_bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in files
    }
    one = {"size_bytes": 5, "sha256": hashlib.sha256(b"owned").hexdigest()}
    if way == "a command in a name":
        found['x"\\n!touch "/OUTSIDE/owned'] = one
    if way == "a name above the folder":
        found["../../../x"] = one
    if way == "more than the disk has":
        found["x"] = {**one, "size_bytes": 1 << 43}
    return found


sys.stdin.readline()
if way == "a log at an absolute path":
    say(kind="log_chunk", name="/OUTSIDE/owned.log", text="owned")
if way == "no JSON":
    print("Segmentation fault", flush=True)
while way == "a line without end":
    sys.stdout.write("x" * 65536)
while way == "messages without end":
    say(kind="rank_ready", rank=2)
while way == "errors without end":
    sys.stderr.write("x" * 65536 + "\\n")
if way == "neither reads nor writes":
    time.sleep(3600)
for line in sys.stdin:
    message = json.loads(line)
    if message["kind"] == "request":
        result = manifest() if message["operation"] == "manifest" else None
        say(kind="reply", number=message["number"], result=result, error="")
'''

PYTHON = """#!/bin/sh
# An interpreter that announces more than any file has, whatever it is to run.
printf '\\377\\377\\377\\377\\377\\377\\377\\377'
cat /dev/zero
"""

WAYS = {
    "honest": "",
    "a command in a name": "is no file name",
    "a name above the folder": "is no file name",
    "more than the disk has": "bytes free",
    "more than was announced": "the node announces",
    "a log at an absolute path": "is not the name of a log",
    "no JSON": "garbled",
    "a line without end": "it wrote a line of more than 4 MiB",
    # Either its messages are too many, or its reply does not come in time.
    "messages without end": "edge.trainer.1.2",
    "errors without end": "did not list the files",
    "neither reads nor writes": "did not list the files",
    "a damaged stream": "the files of a node are damaged",
    "another's rows": "column rank has the value 0",
    "a damaged clock": "is not a clock exchange",
}
"""What the controller says of a node that lies in this way."""

SCRIPT = f"""
    RUN = "/var/tmp/run"
    def furnish(disk, rank, way):
        # What a run leaves on a node, whose /var/tmp this is.
        shutil.rmtree(disk / "run", ignore_errors=True)
        workers = disk / "run" / "workers"
        workers.mkdir(parents=True)
        stream = RowStream(workers / f"rank-{{rank}}.steps.arrow", STEP_ROW)
        said = 0 if way == "another's rows" else rank
        stream.append((0, said, 10, 20, 0.5, 64, 64, 0, 0, 0, 0, 0, 0))
        stream.close()
        if rank == 0:
            (workers / "zero").write_text(json.dumps({{"zero_ns": 5}}))
        if way == "a damaged stream":
            steps = workers / f"rank-{{rank}}.steps.arrow"
            steps.write_bytes(steps.read_bytes().replace(b"applied_version", b"applied_venison"))
        if way == "a damaged clock":
            (disk / "run" / "clock.jsonl").write_text("[" * 100000 + "\\n")

    def collect(way, nodes, scenario, plans, there, config):
        outside = here / "outside"
        outside.mkdir(exist_ok=True)
        disks = [here / "nodes" / "disks" / node.spec.name for node in nodes]
        ways = ["honest", "honest", way]
        for rank, (disk, each) in enumerate(zip(disks, ways)):
            furnish(disk, rank, each)
            agent = {AGENT!r}.replace("/OUTSIDE", str(outside))
            (disk / "agent.py").write_text(agent)
            (disk / "python").write_text({PYTHON!r})
            (disk / "python").chmod(0o755)
        names = [machine.alias for machine in there]
        commands = {{
            name: shlex.join(["/usr/bin/python3", "/var/tmp/agent.py", each, RUN])
            for name, each in zip(names, ways)
        }}
        pythons = dict.fromkeys(names, "/usr/bin/python3")
        if way == "more than was announced":
            pythons[names[2]] = "/var/tmp/python"
        run_folder = here / "runs" / way.replace(" ", "-").replace("'", "")
        (run_folder / "logs").mkdir(parents=True)
        hubs = BarrierHub(names, names[0]), ProgressHub(names, names[0])
        with RemoteProcesses(there, config, commands) as processes:
            pool = AgentPool(processes, plans, *hubs, run_folder / "logs")
            pool.start()
            fetched = fetching.fetch_results(
                scenario, pool, run_folder, fetching.FetchConfig(config, pythons)
            )
        import pyarrow.parquet as pq
        return {{
            "missing": dict(fetched.missing_hosts),
            "ranks": pq.read_table(run_folder / "steps.parquet")["rank"].to_pylist(),
            "outside": [path.name for path in outside.iterdir()],
            "left": sorted(path.name for path in run_folder.iterdir()),
            "logs": [path.name for path in (run_folder / "logs").iterdir()],
        }}

    def play():
        global fetching, shlex, shutil, AgentPool, RemoteProcesses, BarrierHub, ProgressHub, STEP_ROW, RowStream
        import hashlib, shlex, shutil
        from laggard.remote import fetch_results as fetching
        from laggard.remote.agent_pool import AgentPool
        from laggard.remote.agent_plans import build_agent_plans
        from laggard.layers_services.ssh.remote_processes import RemoteProcesses
        from laggard.layers_services.ssh.ssh_config import write_ssh_config
        from laggard.scenario.load import load_scenario
        from laggard.workloads.coordination.barrier_relay import BarrierHub
        from laggard.workloads.coordination.progress_relay import ProgressHub
        from laggard.workloads.tracing.row_types import STEP_ROW
        from laggard.workloads.tracing.stream import RowStream
        from tests.testbed.nodes import NodeSpec, machines, start_nodes
        fetching._MANIFEST_TIMEOUT_S = 3.0
        private_ssh(here / "ssh")
        scenario = load_scenario(scenario_folder, ())
        specs = [NodeSpec(f"node-{{i}}.example.org", f"172.30.0.{{i}}") for i in (1, 2, 3)]
        with start_nodes(specs, here / "nodes") as nodes:
            there = machines(scenario.hosts, nodes)
            scenario = scenario.with_hosts([machine.host for machine in there])
            folders = dict.fromkeys((machine.alias for machine in there), RUN)
            plans = build_agent_plans(scenario, folders, dict.fromkeys(folders, 0))
            config = write_ssh_config(there, here / "ssh_config")
            before = {{path.name for path in here.iterdir()}} | {{"runs", "outside"}}
            found = {{
                way: collect(way, nodes, scenario, plans, there, config) for way in {list(WAYS)!r}
            }}
            return {{"ways": found, "more": sorted({{path.name for path in here.iterdir()}} - before)}}

    inside(play)
"""


@holds(Fault.NODE_GARBLED)
@pytest.mark.long
def test_a_lying_node_costs_its_own_data_alone(own_runner: Runner) -> None:
    found = run_script(own_runner, SCRIPT, timeout_s=300)
    assert found["more"] == []
    assert found["ways"].keys() == WAYS.keys()
    tables = ["hosts.parquet", "links.parquet", "logs", "spans.parquet", "steps.parquet"]
    for way, reason in WAYS.items():
        seen = found["ways"][way]
        assert (seen["outside"], seen["logs"]) == ([], []), way
        assert seen["left"] == tables, way
        if way == "honest":
            assert (seen["missing"], seen["ranks"]) == ({}, [0, 1, 2])
        else:
            assert seen["ranks"] == [0, 1], way
            assert list(seen["missing"]) == ["edge.trainer.1.2"], way
            assert reason in seen["missing"]["edge.trainer.1.2"], way
