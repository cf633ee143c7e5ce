"""Scenario folders: good ones load with their plan; bad ones get located, explained, complete
messages."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.errors import ScenarioError
from laggard.scenario.load import load_scenario
from tests.scenario.scenario_folders import REPOSITORY, SHIPPED, problems_of, template, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "mine", template())


@pytest.mark.parametrize("shipped", SHIPPED)
def test_what_is_shipped_is_good(shipped: str) -> None:
    scenario = load_scenario(REPOSITORY / shipped)
    assert scenario.warnings == ()
    assert [
        len([h for h in scenario.hosts if h.layer == layer]) for layer in ("cloud", "fog", "edge")
    ] == [2, 2, 4]
    assert [host.layer for host in scenario.ranks] == ["cloud"] * 2 + ["fog"] * 2 + ["edge"] * 4


def test_the_template_is_planned(folder: Path) -> None:
    scenario = load_scenario(folder)
    assert scenario.name == "mine"
    assert scenario.warnings == ()
    assert [host.name for host in scenario.ranks] == [
        "cloud.trainer.1.1", "fog.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2",
    ]  # fmt: skip
    assert dict(scenario.shares) == {
        "cloud.trainer.1.1": 0.4, "fog.trainer.1.1": 0.2, "edge.trainer.1.1": 0.1, "edge.trainer.1.2": 0.1,
    }  # fmt: skip
    assert scenario.links.pairs["edge.trainer.1.1", "cloud.trainer.1.1"].delay_ms == 15
    assert scenario.links.pairs["cloud.trainer.1.1", "edge.trainer.1.1"].rate_mbps == 50
    assert [change.at_s for change in scenario.changes] == [20.0, 30.0]
    assert scenario.peak_shares == scenario.shares


def test_heterogeneity_may_be_left_out(folder: Path) -> None:
    (folder / "heterogeneity.yaml").unlink()
    scenario = load_scenario(folder)
    assert set(scenario.shares.values()) == {1.0}
    assert any("all hosts are alike" in warning for warning in scenario.warnings)
    assert set(scenario.files()) == {
        "layers_services.yaml",
        "network.yaml",
        "workflow.yaml",
        "workload.yaml",
    }
    scenario = load_scenario(folder, ["heterogeneity.deterministic.0={hosts: edge.*, cpu: 10%}"])
    assert scenario.shares["edge.trainer.1.1"] == 0.1
    assert "heterogeneity.yaml" in scenario.files()
    assert scenario.warnings == ()


@pytest.mark.parametrize(
    ("name", "warned"),
    [
        ("hetrogeneity.yaml", True),
        ("heterogeneity.yml", True),
        ("workloads.yaml", True),
        ("workflow_env.yaml", False),
        ("sweep.yaml", False),
        ("notes.txt", False),
    ],
)
def test_a_misspelt_file_is_not_passed_over_in_silence(
    folder: Path, name: str, warned: bool
) -> None:
    (folder / name).write_text("{}\n")
    assert any(name in warning for warning in load_scenario(folder).warnings) is warned


def test_a_key_of_another_kind_of_rule_is_told_so(folder: Path) -> None:
    rule = (
        "heterogeneity.dynamic.0={at: 1s, for: 1s, hosts: edge.*, src: edge.*, dst: fog.*, rate:"
        " 1mbit}"
    )
    told = str(problems_of(folder, rule))
    assert "remove `hosts`, which excludes it, or remove this key" in told
    assert "did you mean `src`" not in told


def test_overrides_reach_every_file(folder: Path) -> None:
    scenario = load_scenario(
        folder,
        [
            "workload.batch_size=64",
            "network.networks.0.delay=20ms",
            "heterogeneity.deterministic.0.cpu=50%",
            "heterogeneity.dynamic.1={at: 1s, for: 2s, hosts: cloud.*, cpu: 90%}",
            "layers_services.layers.2.services.0.quantity=3",
            "workflow=[{hosts: 'edge.*', prepare: [{shell: hostname}]}]",
        ],
    )
    assert scenario.workload.batch_size == 64
    assert scenario.links.pairs["edge.trainer.1.3", "fog.trainer.1.1"].delay_ms == 20
    assert scenario.shares["cloud.trainer.1.1"] == 0.5
    assert scenario.peak_shares["cloud.trainer.1.1"] == 0.9
    assert len(scenario.hosts) == 5
    assert len(scenario.workflow.plays) == 1


def test_the_files_as_run_load_as_the_same_scenario(folder: Path, tmp_path: Path) -> None:
    (folder / "lte.csv").write_text("seconds,delay_ms\n0,10\n5,20\n")
    trace = "heterogeneity.dynamic.1={trace: lte.csv, src: edge.*, dst: fog.*}"
    scenario = load_scenario(folder, ["workload.batch_size=64", trace])
    for name, data in scenario.files().items():
        (tmp_path / "again" / "mine").mkdir(parents=True, exist_ok=True)
        (tmp_path / "again" / "mine" / name).write_bytes(data)
    again = load_scenario(tmp_path / "again" / "mine")
    for attribute in (
        "layers",
        "network",
        "workflow",
        "heterogeneity",
        "workload",
        "hosts",
        "links",
        "shares",
        "changes",
    ):
        assert getattr(again, attribute) == getattr(scenario, attribute), attribute
    assert scenario.files()["network.yaml"] == (folder / "network.yaml").read_bytes()
    assert b"# --set workload.batch_size=64" in scenario.files()["workload.yaml"]


def _replace(name: str, old: str, new: str) -> Callable[[dict[str, str]], None]:
    def change(files: dict[str, str]) -> None:
        assert old in files[name]
        files[name] = files[name].replace(old, new, 1)

    return change


def _become(name: str, text: str) -> Callable[[dict[str, str]], None]:
    def change(files: dict[str, str]) -> None:
        files[name] = text

    return change


LAYERS, NETWORK, WORKFLOW, HETEROGENEITY, WORKLOAD = (
    "layers_services",
    "network",
    "workflow",
    "heterogeneity",
    "workload",
)


def _churn(entries: str) -> Callable[[dict[str, str]], None]:
    return _replace(WORKLOAD, "strategy: allreduce", f"strategy: asynchronous\nchurn: [{entries}]")


LETTERS = "abcdefghijklmnopqrs"
BOMB = "a: &a [1]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in itertools.pairwise(LETTERS))


@pytest.mark.parametrize(
    ("change", "place", "rule"),
    [
        (_replace(WORKLOAD, "batch_size:", "batchsize:"), "workload.yaml:6:1", "unknown key — did you mean `batch_size`?"),
        (_replace(NETWORK, "delay: 5ms", "delay: 10 parsecs"), "network.yaml:5:", "a delay must be text with a number"),
        (_replace(NETWORK, "delay: 5ms", "delay: -5ms"), "network.yaml:5:", "a delay must be text with a number"),
        (_replace(NETWORK, "rate: 100mbit", "rate: 0mbit"), "network.yaml:5:", "a rate must be text with a positive number"),
        (_replace(NETWORK, "delay: 5ms", "delay: .nan"), "network.yaml:5:", "a number must be finite"),
        (_replace(NETWORK, 'src: "edge.*"', 'src: "edgy.*"'), "network.yaml:5:", "matches no host"),
        (_replace(NETWORK, 'src: "edge.*"', 'src: "~["'), "network.yaml:5:", "brackets"),
        (_replace(NETWORK, 'src: "edge.*"', 'src: "~\\\\bedge"'), "network.yaml:5:", "cannot be matched in linear time"),
        (_replace(NETWORK, 'src: "edge.*"', 'src: "$(reboot)"'), "network.yaml:5:", "matches no host"),
        (_replace(NETWORK, 'src: "edge.*"', 'src: "edge.*; reboot"'), "network.yaml:5:", "matches no host"),
        (_become(NETWORK, ""), "", ""),
        (_become(NETWORK, "networks:\n"), "", ""),
        (_become(NETWORK, "[]"), "network.yaml:1:1", "keys with values"),
        (_become(NETWORK, "networks: 3"), "network.yaml:1:11", "a list is expected"),
        (_become(NETWORK, BOMB), "network.yaml:", "more than 200000 values"),
        (_become(HETEROGENEITY, BOMB), "heterogeneity.yaml:1:4", "anchors and aliases"),
        (_become(NETWORK, "networks: !!python/object:os.system [id]"), "network.yaml:1:11", "only the standard tags"),
        (_become(NETWORK, "networks: " + "[" * 5000), "network.yaml:1:", "nested deeper"),
        (_become(NETWORK, "networks: [&a {src: 'edge.*', dst: 'fog.*', delay: 1ms, rate: 1mbit}" + ", *a" * 10_000 + "]"), "network.yaml:1:11", "the limit is 10000"),
        (_become(WORKFLOW, ""), "workflow.yaml:1:1", "a list is expected"),
        (_become(WORKFLOW, "[{hosts: nobody.*}]"), "workflow.yaml:1:10", "matches no host"),
        (_become(WORKLOAD, ""), "workload.yaml:1:1", "keys with values"),
        (_become(WORKLOAD, "- model"), "workload.yaml:1:1", "keys with values"),
        (_replace(WORKLOAD, "batch_size: 128", "batch_size: 3"), "workload.yaml:6:13", "each of the 4 workers"),
        (_replace(WORKLOAD, "batch_size: 128", "batch_size: -1"), "workload.yaml:6:13", "at least 1"),
        (_replace(WORKLOAD, "batch_size: 128", "batch_size: " + "9" * 5000), "workload.yaml:6:13", "63 bits"),
        (_replace(WORKLOAD, "lr: 0.05", "lr: .inf"), "workload.yaml:7:", "finite"),
        (_replace(WORKLOAD, "lr: 0.05", "lr: nan"), "workload.yaml:7:", "finite"),
        (_replace(WORKLOAD, "dataset: digits", "dataset: {name: cifar10, folder: nowhere}"), "workload.yaml:4:", "there is no folder"),
        (_replace(WORKLOAD, "dataset: digits", "dataset: {name: synthetic, kind: tokens}"), "workload.yaml:3:8", "takes images"),
        (_replace(WORKLOAD, "cloud: 1.20", "clod: 1.20"), "workload.yaml:", "did you mean `cloud`?"),
        (_replace(WORKLOAD, '"edge.*"]', '"egde.*"]'), "workload.yaml:12:", "matches no host"),
        (_replace(WORKLOAD, "per_host: 1", "per_host: 65"), "workload.yaml:13:", "at most 64"),
        (_replace(WORKLOAD, "strategy: allreduce", "strategy: {name: backup_workers, backups: 4}"), "workload.yaml:8:43", "gradient of at least one of the 4 workers"),
        (_replace(WORKLOAD, "strategy: allreduce", "strategy: {name: hop, graph: complete, backups: 3}"), "workload.yaml:8:49", "each of 4 workers has 3 neighbors"),
        (_replace(WORKLOAD, "strategy: allreduce", "checkpoint_every: 9\nstrategy: asynchronous"), "workload.yaml:8:19", "no worker has the whole state of the training"),
        (_replace(WORKLOAD, "strategy: allreduce", "strategy: bounded_stalenes"), "workload.yaml:8:11", "did you mean `bounded_staleness`?"),
        (_replace(WORKLOAD, "strategy: allreduce", "churn: [{at: 9s, leaves: edge.trainer.1.1}]"), "workload.yaml:8:8", "none can leave or join — use parameter_server, asynchronous"),
        (_replace(WORKLOAD, "strategy: allreduce", "strategy: diloco\nchurn: [{at: 9s, joins: edge.trainer.1.1}]"), "workload.yaml:9:8", "under diloco every worker takes part in collectives"),
        (_churn("{at: 9s, leaves: edge.trainer.1.9}"), "workload.yaml:9:26", "matches no host"),
        (_churn("{at: 9s, leaves: edge.*, joins: edge.*}"), "workload.yaml:9:9", "either `leaves` or `joins` — give one of them"),
        (_churn("{at: 9s}"), "workload.yaml:9:9", "either `leaves` or `joins` — give one of them"),
        (_churn("{leaves: edge.*}"), "workload.yaml:9:9", "`at` is missing"),
        (_churn("{at: 9s, leave: edge.*}"), "workload.yaml:9:18", "did you mean `leaves`?"),
        (_churn("{at: -9s, leaves: edge.*}"), "workload.yaml:9:14", "a duration must be a number"),
        (_churn("{at: 9s, leaves: edge.*}, {at: 10s, leaves: edge.trainer.1.2}"), "workload.yaml:9:53", "edge.trainer.1.2 is already absent at 10 s — add an earlier entry in which it joins"),
        (_churn("{at: 9s, leaves: edge.*}, {at: 5s, leaves: edge.trainer.1.2}"), "workload.yaml:9:26", "edge.trainer.1.2 is already absent at 9 s"),
        (_churn("{at: 9s, leaves: fog.*}, {at: 10s, joins: fog.*}, {at: 11s, joins: fog.*}"), "workload.yaml:9:76", "fog.trainer.1.1 is already present at 11 s — add an earlier entry in which it leaves"),
        (_churn("{at: 9s, leaves: '*'}"), "workload.yaml:9:26", "no worker is left to train at 9 s"),
        (_churn("{at: 9s, joins: '*'}"), "workload.yaml:9:25", "no worker is present when training begins"),
        (_churn("{at: 9s, leaves: edge.*}, {at: 10s, joins: edge.*}, {at: 5s, joins: cloud.*}"), "", ""),
        (_replace(LAYERS, "name: fog", "name: cloud"), "layers_services.yaml:", "two layers have this name"),
        (_replace(LAYERS, "name: fog", "name: Cloud"), "layers_services.yaml:", "two layers have this name"),
        (_replace(LAYERS, "name: fog", "name: 'fog; rm -rf /'"), "layers_services.yaml:14:11", "letters, digits"),
        (_replace(LAYERS, "name: fog", "name: $(id)"), "layers_services.yaml:14:11", "letters, digits"),
        (_replace(LAYERS, "quantity: 2", "quantity: 1000000"), "layers_services.yaml:", "hosts"),
        (_replace(LAYERS, "quantity: 2", "quantity: 2000"), "layers_services.yaml:", "hosts"),
        (_replace(LAYERS, "quantity: 2", "quantity: -2"), "layers_services.yaml:", "at least 1"),
        (_replace(LAYERS, "quantity: 2", "quantity: 1.5"), "layers_services.yaml:", "whole number"),
        (_replace(LAYERS, "quantity: 2", "quantitty: 2"), "layers_services.yaml:", "quantity"),
        (_replace(LAYERS, "cluster: paradoxe", "clutser: paradoxe"), "layers_services.yaml:", "unknown key"),
        (_replace(HETEROGENEITY, "cpu: 40%", "cpu: 0%"), "heterogeneity.yaml:4:", "a cpu share"),
        (_replace(HETEROGENEITY, "cpu: 40%", "cpu: 0.01%"), "heterogeneity.yaml:4:", "at least 0.1%"),
        (_replace(HETEROGENEITY, "cpu: 40%", "cpu: 40"), "heterogeneity.yaml:4:", "a cpu share"),
        (_replace(HETEROGENEITY, "cpu: 40%", "memory: 200MiB"), "heterogeneity.yaml:4:", "a worker needs at least 240 MiB"),
        (_replace(HETEROGENEITY, "cpu: 40%", "memory: 300"), "heterogeneity.yaml:4:", "with the unit"),
        (_replace(HETEROGENEITY, "cpu: 40%", "uplink: 20"), "heterogeneity.yaml:4:", "with the unit"),
        (_replace(HETEROGENEITY, "at: 20s, for: 10s", "at: 20s, for: 10s, delay: 20"), "heterogeneity.yaml:16:", "with the unit"),
        (_replace(HETEROGENEITY, "at: 20s, for: 10s", "at: 20s, for: 10s, jitter: 900ms"), "heterogeneity.yaml:16:", "jitter must not exceed the delay"),
        (_replace(HETEROGENEITY, 'dst: "cloud.*"', 'dst: "cluod.*"'), "heterogeneity.yaml:16:", "did you mean cloud.*?"),
        (_replace(HETEROGENEITY, "cpu: 40%", "read: 20"), "heterogeneity.yaml:4:", "a throughput"),
        (_replace(HETEROGENEITY, "cpu: 40%", "read_latency: 5"), "heterogeneity.yaml:4:", "a latency"),
        (_replace(HETEROGENEITY, "at: 20s", "at: -20s"), "heterogeneity.yaml:16:", "a duration"),
        (_replace(HETEROGENEITY, 'dst: "cloud.*"', 'dst: "clown.*"'), "heterogeneity.yaml:16:", "matches no host"),
        (_replace(HETEROGENEITY, "at: 20s, for: 10s", "random: {every: 1ms, for: 0.1ms, seed: 1}"), "heterogeneity.yaml:16:", "lengthen the period"),
        (_replace(HETEROGENEITY, "at: 20s, for: 10s, src", "trace: ../../etc/passwd, src"), "heterogeneity.yaml:16:", "inside the scenario folder"),
        (_replace(HETEROGENEITY, "  - {at: 20s", "  - {trace: no.csv, src: 'edge.*', dst: 'fog.*'}\n  - {at: 20s"), "heterogeneity.yaml:16:", "missing"),
    ],
)  # fmt: skip
def test_special_cases(
    change: Callable[[dict[str, str]], None], place: str, rule: str, tmp_path: Path
) -> None:
    files = template()
    change(files)
    problems = problems_of(write(tmp_path, files))
    if not place:
        assert problems == ()
        return
    assert problems
    said = [str(problem) for problem in problems]
    assert any(place in line and rule in line for line in said), "\n".join(said)
    assert all(problem.path and problem.rule for problem in problems)
    assert all(len(line) < 1000 and line.isprintable() for line in said)


def test_without_a_workload_nothing_is_trained(folder: Path) -> None:
    assert load_scenario(folder).trains
    assert not load_scenario(folder, training=False).trains
    (folder / f"{WORKLOAD}.yaml").unlink()
    scenario = load_scenario(folder)
    assert not scenario.trains
    assert scenario.ranks == ()
    assert scenario.reference_host == scenario.hosts[0]
    overrides = ["workload.model=mlp", "workload.dataset=digits", "workload.stop.steps=3"]
    assert load_scenario(folder, overrides).trains


@pytest.mark.parametrize("name", [LAYERS, NETWORK, WORKFLOW])
def test_a_missing_file_is_named(name: str, folder: Path) -> None:
    (folder / f"{name}.yaml").unlink()
    (problem,) = problems_of(folder)
    assert problem.path == str(folder / f"{name}.yaml")
    assert "missing" in problem.rule
    assert problem.fix


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 34)


def _latin1(path: Path) -> None:
    path.write_bytes("seed: 1 # caf\xe9".encode("latin-1"))


@pytest.mark.parametrize("make", [_directory, _fifo, _loop, _endless, _huge, _latin1])
@pytest.mark.parametrize("name", ["workload", "heterogeneity"])
def test_what_is_no_file_of_text_is_refused(
    make: Callable[[Path], None], name: str, folder: Path
) -> None:
    path = folder / f"{name}.yaml"
    path.unlink()
    make(path)
    (problem,) = problems_of(folder)
    assert problem.path == str(path)


def test_a_file_that_may_not_be_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, flags: int) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)
    problems = problems_of(folder)
    assert len(problems) == 5
    assert all("Permission denied" in problem.rule for problem in problems)


@pytest.mark.parametrize("where", ["nowhere", "mine/workload.yaml"])
def test_no_folder_is_a_clear_error(where: str, folder: Path) -> None:
    (problem,) = problems_of(folder.parent / where)
    assert "laggard init" in problem.fix


def test_yml_files_are_told_to_be_renamed(folder: Path) -> None:
    (folder / "network.yaml").rename(folder / "network.yml")
    assert "rename network.yml to network.yaml" in problems_of(folder)[0].fix


def test_the_problems_of_all_files_come_at_once_in_order(tmp_path: Path) -> None:
    files = template()
    files["network"] = files["network"].replace("5ms", "5 parsecs").replace("10ms", "ten")
    files["workload"] = (
        files["workload"].replace("batch_size: 128", "batch_size: 3").replace("seed: 1", "sed: 1")
    )
    files["workflow"] = "[{hosts: nobody.*}]"
    files["heterogeneity"] = files["heterogeneity"].replace("cpu: 40%", "cpu: 400%")
    problems = problems_of(write(tmp_path, files), "workload.stop.steps=0", "nothing.here=1")
    where = [(problem.path, problem.line) for problem in problems]
    assert where == sorted(where)
    assert {Path(path).name for path, _ in where if not path.startswith("--set")} == {
        "network.yaml", "workload.yaml", "workflow.yaml", "heterogeneity.yaml",
    }  # fmt: skip
    assert {path for path, _ in where if path.startswith("--set")} == {
        "--set workload.stop.steps=0", "--set nothing.here=1",
    }  # fmt: skip


def test_an_endless_list_of_problems_is_cut(tmp_path: Path) -> None:
    rule = "  - {src: 'edge.*', dst: 'fog.*', delay: x, rate: y}\n"
    problems = problems_of(write(tmp_path, template() | {"network": "networks:\n" + rule * 500}))
    assert len(problems) == 101
    assert "900 more" in problems[-1].rule


@pytest.mark.parametrize(
    ("override", "warning"),
    [
        ("network.networks.1=null", "network.yaml"),
        ("workload.stop.steps=10", "before 3 evaluations"),
        ("workload.stop.time=10s", "before this entry begins"),
        ("workload.placement.workers=[cloud.*]", "never waits for another"),
        ("workload.placement.workers=[edge, cloud.*]", "edge.*"),
        ("network.networks=[]", "no rule constrains"),
        ("network.networks.0.delay='5'", "microseconds"),
        ("workload.batch_size=100000", "only 1437 training samples"),
    ],
)
def test_warnings(override: str, warning: str, folder: Path) -> None:
    if "null" in override:
        assert problems_of(folder, override)
        return
    warnings = load_scenario(folder, [override]).warnings
    assert any(warning in line for line in warnings), warnings


def test_a_name_from_a_dot_and_a_folder_with_odd_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = write(tmp_path / "caf\xe9 \x1b[31m", template())
    monkeypatch.chdir(odd)
    assert load_scenario(Path()).name == odd.name
    (odd / "workload.yaml").write_text("")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(odd)
    assert str(caught.value).isprintable()


MANY = "layers_services.layers.2.services.0.quantity=498"


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("overrides", "rule"),
    [
        ([MANY, "workload.batch_size=1000"], ""),
        ([MANY, "workload.batch_size=1000", "network.networks=[{src: '*', dst: '*', delay: 1ms, rate: 1mbit}]"], ""),
        ([MANY, f"network.networks=[&a {{src: x, dst: y, delay: 1ms, rate: 1mbit}}{', *a' * 10_000}]"], "the limit is 10000"),
        ([MANY, f"network.networks=[{'{src: all, dst: all, delay: 1ms, rate: 1mbit},' * 9}]"], "host pairs"),
        ([MANY, "workload.placement.per_host=64"], "workers"),
        ([MANY, f"layers_services.layers.2.services.0.roles=[{','.join(f'r{i}' for i in range(20_000))}]"], "roles"),
        ([f"workload.objective.prices={{{','.join(f'l{i}: 1' for i in range(20_000))}}}"], "neither a layer nor `gigabyte`"),
        ([f"network.networks=[{(chr(123) + 'src: ' + chr(39) + '*a' * 100 + chr(39) + ', dst: all, delay: 1ms, rate: 1mbit},') * 500}]"], "no host"),
    ],
)  # fmt: skip
def test_what_is_large_is_refused_or_planned_soon(
    overrides: list[str], rule: str, folder: Path
) -> None:
    problems = problems_of(folder, *overrides)
    assert any(rule in problem.rule for problem in problems) if rule else problems == ()


CHECK = """
import sys
from pathlib import Path
from laggard.scenario.load import load_scenario
load_scenario(Path(sys.argv[1]))
heavy = {"torch", "pandas", "pyarrow", "matplotlib", "scipy", "enoslib", "ansible"}
sys.exit(", ".join(sorted(heavy & set(sys.modules))) or 0)
"""


@pytest.mark.parametrize("shipped", SHIPPED)
def test_a_check_imports_nothing_heavy(shipped: str) -> None:
    """A check is made before every run and while a scenario is written: it must not take longer
    than reading what it checks."""
    command = [sys.executable, "-c", CHECK, str(REPOSITORY / shipped)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_emulate_warns_of_limits_that_hold_no_program_of_the_users(tmp_path: Path) -> None:
    """Told before anything is brought up, which here nothing is: runs cannot be kept there."""
    text = 'deterministic:\n  - {hosts: "edge.*", read: 20MB/s, memory: 1GiB}\n'
    folder = write(tmp_path / "mine", {**template(), "heterogeneity": text})
    result = CliRunner().invoke(main, ["emulate", str(folder), "--runs", "/run/laggard-runs"])
    assert "--runs" in result.output
    assert "heterogeneity.yaml:2:29: deterministic.0.read" in result.output
    assert "heterogeneity.yaml:2:45: deterministic.0.memory" in result.output
    assert "the limit has no effect: your own programs are not limited" in result.output
    assert "has no effect" not in CliRunner().invoke(main, ["check", str(folder)]).output
