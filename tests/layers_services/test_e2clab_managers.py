"""E2Clab's managers through E2Clab's own classes; what refuses them is known from the file."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from laggard.core.corrections.model_problems import validate_model
from laggard.core.yaml_source import parse_yaml
from laggard.layers_services.e2clab.manager_support import G5K, LOCAL, SSH
from laggard.layers_services.e2clab.managers import manager_problems
from laggard.layers_services.model import LayersServices

if TYPE_CHECKING:
    from tests.users import Runner

LAYERS = """\
environment: {g5k: {cluster: parasilo}}
layers:
- name: edge
  services:
  - {name: trainer, quantity: 1, roles: [monitoring, k_monitor, provenance]}
  - {name: keeper, roles: [monitoring_service, provenance_service]}
"""
DSTAT = "monitoring: {type: dstat, options: -cn}\n"
TIG = "monitoring: {type: tig, provider: g5k, cluster: parasilo, network: shared}\n"
KWOLLECT = "kwollect: {metrics: [wattmetre_power_watt], start: launch, end: finalize}\n"
PROVENANCE = "provenance: {provider: g5k, cluster: parasilo, dataflow_spec: spec.py}\n"
IOTLAB = "monitoring_iotlab: {profiles: [{name: p, archi: a8}]}\n"


SUPPORT = {each.testbed: each for each in (LOCAL, SSH, G5K)}


def problems(text: str, testbed: str) -> list[str]:
    source = parse_yaml(text, "layers_services.yaml")
    found = manager_problems(validate_model(source, LayersServices), SUPPORT[testbed], source)
    return [str(problem) for problem in found]


@pytest.mark.parametrize("testbed", ["local", "ssh", "g5k"])
def test_a_scenario_without_managers_has_no_problem(testbed: str) -> None:
    assert problems(LAYERS, testbed) == []


@pytest.mark.parametrize(
    ("manager", "testbed", "refused"),
    [
        (DSTAT, "local", "monitoring: not supported on `local`"),
        (DSTAT, "ssh", ""),
        (DSTAT, "g5k", ""),
        (TIG, "local", "monitoring: not supported on `local`"),
        (TIG, "ssh", ""),
        (TIG, "g5k", ""),
        (KWOLLECT, "local", "kwollect: kwollect measures Grid'5000 nodes only"),
        (KWOLLECT, "ssh", "kwollect: kwollect measures Grid'5000 nodes only"),
        (KWOLLECT, "g5k", ""),
        (PROVENANCE, "local", "provenance: not supported on `local`"),
        (PROVENANCE, "ssh", "docker-cache.grid5000.fr"),
        (PROVENANCE, "g5k", ""),
        (IOTLAB, "local", "FIT IoT-LAB"),
        (IOTLAB, "g5k", "FIT IoT-LAB"),
    ],
)
def test_where_managers_run(manager: str, testbed: str, refused: str) -> None:
    found = problems(LAYERS + manager, testbed)
    assert len(found) == bool(refused), found
    assert all(refused in each and "layers_services.yaml:7:" in each for each in found)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            LAYERS.replace("monitoring, ", "") + DSTAT,
            "it watches the hosts with the role `monitoring`",
        ),
        (
            LAYERS.replace("k_monitor, ", "") + KWOLLECT,
            "the role `k_monitor`, and no service has this role",
        ),
        (
            LAYERS.replace("monitoring_service, ", "") + TIG,
            "a machine with the role `monitoring_service`",
        ),
        (
            LAYERS.replace(", provenance_service", "") + PROVENANCE,
            "a machine with the role `provenance_service`",
        ),
        (LAYERS + TIG.replace("tig", "graphite"), "the type must be dstat, tig or tpg"),
        (LAYERS + TIG.replace("shared", "private"), "only E2Clab's own reservation"),
        (LAYERS + KWOLLECT.replace(", end: finalize", ""), "only log this, and collect nothing"),
        (
            LAYERS + KWOLLECT.replace("[wattmetre_power_watt]", "all"),
            "`metrics` must be a list of metric names",
        ),
        (LAYERS + PROVENANCE.replace(", dataflow_spec: spec.py", ""), "`dataflow_spec` is missing"),
    ],
)
def test_settings_that_would_collect_nothing_are_refused(text: str, rule: str) -> None:
    found = problems(text, "g5k")
    assert len(found) == 1, found
    assert rule in found[0]


HEAD = """
    import http.server, json, os, sys, threading, time
    from pathlib import Path
    from laggard.core.errors import LaggardError
    from laggard.layers_services.compile import compile_hosts
    from laggard.layers_services.e2clab.managers import start_managers
    from laggard.layers_services.local import namespaces, sandbox
    from laggard.layers_services.local.provider import enoslib_roles, use_namespace_connection
    from laggard.layers_services.model import LayersServices
    from laggard.core.run_schema import ReservedJob
    from laggard.core.corrections.model_problems import validate_model
    from laggard.core.yaml_source import parse_yaml

    here = Path.cwd()
    layers = validate_model(parse_yaml((here / "layers_services.yaml").read_bytes(), "layers"), LayersServices)
    hosts = compile_hosts(layers)
    output = here / "run-7"

    def inside(function):
        def entered():
            namespaces.create_namespaces(hosts, "bridge")
            use_namespace_connection()
            print("\\n" + json.dumps(function(*enoslib_roles(hosts))), flush=True)
            return 0
        return sandbox.run_in_sandbox(entered)
"""


def answer(runner: Runner, layers: str, script: str) -> dict[str, object]:
    (runner.folder / "layers_services.yaml").write_text(layers)
    result = runner.run(HEAD + script, timeout_s=480)
    lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
    assert lines, result.stdout + result.stderr
    value = json.loads(lines[-1])
    assert isinstance(value, dict)
    return value


# E2Clab's class has the nodes take dool from GitHub; this takes its place there, and writes as dool
# does.
SAMPLER = """
import csv, sys, time
with open(sys.argv[sys.argv.index("-o") + 1], "w", newline="") as stream:
    rows = csv.writer(stream)
    for title in ("dool", "author", "host", "cmdline", "", "total usage"):
        rows.writerow([title])
    rows.writerow(["usr", "idl"])
    while True:
        with open("/proc/stat") as stat:
            words = stat.readline().split()
        rows.writerow([words[1], words[4]])
        stream.flush()
        time.sleep(0.05)
"""


@pytest.mark.long
def test_dstat_monitors_and_its_records_come_home(own_runner: Runner) -> None:
    if shutil.which("tmux") is None:
        pytest.skip("needs tmux: apt-get install tmux")
    (own_runner.folder / "dool").write_text(SAMPLER)
    seen = answer(
        own_runner,
        LAYERS + DSTAT,
        """
    def function(roles, networks):
        from enoslib.service.dstat import dstat
        dstat.DOOL_URL = f"file://{here}/dool"
        dstat.REMOTE_OUTPUT_DIR, dstat.DOOL_PATH = here / "node", here / "node" / "dool"
        os.environ["TMUX_TMPDIR"] = str(here)  # no tmux server but the test's own
        managers = start_managers(layers, roles, networks, here, here, output)
        with managers.stage("launch"):
            wait_for_rows(managers)
        managers.finish()
        return {"names": managers.names, "files": [str(path) for path in output.rglob("*.csv")]}

    def wait_for_rows(managers):
        until = time.monotonic() + 300
        while time.monotonic() < until:
            written = list((here / "node").rglob("*.csv"))
            if written and len(written[0].read_text().splitlines()) > 9:
                return
            time.sleep(0.05)
        raise AssertionError("nothing is monitored")
    inside(function)
""",
    )
    files = [Path(str(name)) for name in seen["files"]]  # type: ignore[attr-defined]
    assert len(files) == 1
    assert files[0].relative_to(own_runner.folder).parts[:3] == (
        "run-7",
        "monitoring-data",
        "edge.trainer.1.1",
    )
    with files[0].open(newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows[6] == ["usr", "idl"]
    assert all(int(busy) > 0 for busy, _ in rows[7:-1])


@pytest.mark.long
def test_nodes_without_the_internet_are_told(own_runner: Runner) -> None:
    seen = answer(
        own_runner,
        LAYERS + DSTAT,
        """
    def function(roles, networks):
        from enoslib.service.dstat import dstat
        dstat.REMOTE_OUTPUT_DIR, dstat.DOOL_PATH = here / "node", here / "node" / "dool"
        os.environ["TMUX_TMPDIR"] = str(here)
        try:
            start_managers(layers, roles, networks, here, here, output)
        except LaggardError as error:
            return {"refused": str(error)}
    inside(function)
""",
    )
    refused = str(seen["refused"])
    assert (
        "E2Clab's `monitoring` manager could not be deployed: edge.trainer.1.1: task `get_url`"
        " failed" in refused
    )
    assert "dool from raw.githubusercontent.com" in refused
    assert "nodes need internet access for it" in refused
    assert "remove `monitoring` from layers_services.yaml" in refused


@pytest.mark.long
def test_settings_against_e2clabs_schema_are_refused_before_anything_is_deployed(
    own_runner: Runner,
) -> None:
    seen = answer(
        own_runner,
        LAYERS + "monitoring: {type: tig}\n",
        """
    def function(roles, networks):
        try:
            start_managers(layers, roles, networks, here, here, output)
        except LaggardError as error:
            return {"refused": str(error)}
    inside(function)
""",
    )
    assert "rejects its settings" in str(seen["refused"])


@pytest.mark.long
def test_kwollect_collects_the_time_of_the_stages(own_runner: Runner) -> None:
    """Against an HTTP server on loopback in the place of Grid'5000's, which answers as its metrics
    API does."""
    seen = answer(
        own_runner,
        LAYERS + KWOLLECT,
        """
    asked = []

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            metric = {"timestamp": "2026-01-01T00:00:00+01:00", "device_id": "parasilo-1",
                      "metric_id": "wattmetre_power_watt", "value": 98, "labels": {}}
            value = [metric] if "/metrics" in self.path else {"uid": "rennes"}
            body = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    def function(roles, networks):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = f"uri: http://127.0.0.1:{server.server_port}\\nusername: u\\npassword: p\\nverify_ssl: false\\n"
        os.environ["HOME"] = str(here)  # the account's file of whoever runs this stays as it is
        here.joinpath(".python-grid5000.yaml").write_text(settings)
        for host in roles["k_monitor"]:
            host.address = "parasilo-1.rennes.grid5000.fr"
        managers = start_managers(layers, roles, networks, here, here, output, jobs=[ReservedJob(testbed="g5k", site="rennes", job_id=7, name="x", nodes=1)])
        began = time.time()
        with managers.stage("launch"):
            pass
        with managers.stage("finalize"):
            pass
        managers.finish()
        server.shutdown()
        files = {path.name: path.read_text() for path in output.rglob("*.jsonl")}
        return {"asked": asked[-1], "files": files, "began": began, "ended": time.time()}
    inside(function)
""",
    )
    files = seen["files"]
    assert isinstance(files, dict)
    assert json.loads(files["parasilo-1.rennes.grid5000.fr.jsonl"])["value"] == 98
    asked = dict(pair.split("=") for pair in str(seen["asked"]).partition("?")[2].split("&"))
    assert (asked["nodes"], asked["metrics"]) == ("parasilo-1", "wattmetre_power_watt")
    began, ended = float(str(seen["began"])), float(str(seen["ended"]))
    assert began <= float(asked["start_time"]) <= float(asked["end_time"]) <= ended
