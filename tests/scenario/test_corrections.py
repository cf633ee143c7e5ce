"""Advice that works: each mistake in a scenario folder is corrected by what its message suggests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.core.corrections.pydantic_words import show_value
from laggard.core.edits import Edit, YamlValue, apply_edits
from laggard.core.yaml_source import parse_yaml
from laggard.scenario.files import dump_yaml
from tests.scenario.scenario_folders import template, write

LAYERS, NETWORK, WORKFLOW, HETEROGENEITY, WORKLOAD = (
    "layers_services",
    "network",
    "workflow",
    "heterogeneity",
    "workload",
)
ALL = ""
"""In place of the old text, stands for the whole file."""
ONCE, STRATEGY = "at: 20s, for: 10s", "strategy: allreduce"
CHURN = "strategy: asynchronous\nchurn: "
PLAY = (
    "[{hosts: edge.*, depends_on: [{service_selector: SELECTOR, prefix: x, grouping: GROUPING}]}]"
)

MISTAKES = [
    # a key in the wrong place
    (LAYERS, "environment:\n", "environment:\n  env_name: debian12-nfs\n", "write it under `environment.g5k:`"),
    (LAYERS, "    job_type: []", "    job_type: [deploy]\n  env_name: debian12-nfs\n  iotlab:", "write it under `environment.g5k:`"),
    (LAYERS, "environment:\n", "environment:\n  queue: default\n", "write it under `environment.g5k:`"),
    (LAYERS, "  - name: fog\n", "  - name: fog\n    repeat: 0\n", "write it under an entry of `layers.services:`"),
    (LAYERS, "layers:  ", "walltime: 01:00:00\nlayers:  ", ""),
    (WORKLOAD, "optimizer: {name: sgd, lr: 0.05, momentum: 0.9}", "optimizer: {name: sgd}\nlr: 0.1", "write it under `optimizer:`"),
    (WORKLOAD, STRATEGY, STRATEGY + "\naccuracy: 0.9", ""),
    # a misspelled key
    (LAYERS, "quantity: 2", "quantitty: 2", "write `quantity`"),
    (LAYERS, "quantity: 2", "Quantity: 2", "write `quantity`"),
    (LAYERS, "cluster: paradoxe", "clutser: paradoxe", "did you mean `cluster`?"),
    (NETWORK, "delay: 5ms", "dellay: 5ms", "did you mean `delay`?"),
    (NETWORK, "symmetric: true", "symetric: true", "did you mean `symmetric`?"),
    (WORKFLOW, ALL, "[{hosts: edge.*, lunch: []}]", "did you mean `launch`?"),
    (WORKFLOW, ALL, "[{hosts: edge.*, zzz: []}]", "remove it"),
    (WORKLOAD, "batch_size:", "batchsize:", "did you mean `batch_size`?"),
    (WORKLOAD, "model:", "modell:", "did you mean `model`?"),
    (WORKLOAD, STRATEGY, STRATEGY + "\nzzz: 10", "remove this one"),
    (WORKLOAD, "cloud: 1.20", "clod: 1.20", "did you mean `cloud`?"),
    (WORKLOAD, "cloud: 1.20", "zzz: 1.20", "remove it"),
    (HETEROGENEITY, ONCE, ONCE + ", hosts: edge.*", "remove `hosts`, which excludes it"),
    # a missing key
    (LAYERS, "environment:", "monitoring:", "add `environment: {"),
    (NETWORK, "delay: 5ms, ", "", "add `delay: 10ms`"),
    (NETWORK, 'src: "edge.*", ', "", "add `src: all`"),
    (WORKFLOW, ALL, "[{prepare: []}]", "add `hosts: all`"),
    (HETEROGENEITY, ONCE, "at: 20s", "add `for: 10s`"),
    (HETEROGENEITY, ", cpu: 40%", "", "for example `cpu: 25%`"),
    (WORKLOAD, "dataset: digits", "", "add `dataset: digits`"),
    (WORKLOAD, "accuracy: 0.95, steps: 300, time: 5min", "", "for example `steps: 1000`"),
    # a wrong type
    (LAYERS, "quantity: 2", "quantity: 1.5", "write 2"),
    (LAYERS, "quantity: 2", "quantity: '2'", "write 2"),
    (LAYERS, "quantity: 2", "servers: 3", 'write ["3"]'),
    (LAYERS, "quantity: 2", "servers: [1]", 'write "1"'),
    (LAYERS, "quantity: 2", "roles: gw", 'write ["gw"]'),
    (LAYERS, "quantity: 2", "repeat: yes", "write 1"),
    (NETWORK, 'src: "edge.*"', "src: 5", "write for example all"),
    (NETWORK, "symmetric: true", "symmetric: maybe", "write false"),
    (NETWORK, ALL, "networks: 3", "write for example null"),
    (NETWORK, ALL, "networks: [3]", "remove this entry"),
    (NETWORK, ALL, "[]", "leave the file empty"),
    (WORKFLOW, ALL, "{}", "write []"),
    (WORKFLOW, ALL, "", "write []"),
    (HETEROGENEITY, ALL, "[]", "leave the file empty"),
    (WORKLOAD, "batch_size: 128", "batch_size: many", "write for example 128"),
    (WORKLOAD, "lr: 0.05", "lr: fast", "write for example 0.05"),
    (WORKLOAD, "dataset: digits", "dataset: 5", "write for example digits"),
    (WORKLOAD, "seed: 1", "seed: 1.5", "write 2"),
    (WORKLOAD, '["cloud.*", "fog.*", "edge.*"]', "[5]", "write for example all"),
    # a value out of its range
    (LAYERS, "quantity: 2", "quantity: -2", "write for example 1"),
    (WORKLOAD, "batch_size: 128", "batch_size: -1", "write for example 128"),
    (WORKLOAD, "batch_size: 128", "batch_size: 3", "set it to 4 or more"),
    (WORKLOAD, "lr: 0.05", "lr: 0", "write for example 0.05"),
    (WORKLOAD, "momentum: 0.9", "momentum: 1", "write 0"),
    (WORKLOAD, "per_host: 1", "per_host: 65", "write for example 1"),
    (WORKLOAD, "accuracy: 0.95", "accuracy: 95", "write 1"),
    (WORKLOAD, "time: 5min", "time: 0s", "write for example 10min"),
    (HETEROGENEITY, "cpu: 40%", "cpu: 0.01%", "raise the share to 0.1%"),
    (HETEROGENEITY, "cpu: 40%", "memory: 200MiB", "raise the limit to at least 240MiB"),
    (HETEROGENEITY, ONCE, ONCE + ", jitter: 900ms", "lower the jitter to 15ms"),
    (HETEROGENEITY, ONCE, "at: 20s, for: 0s", "write for example 1s"),
    (HETEROGENEITY, ONCE, "random: {every: 1ms, for: 0.1ms, seed: 1}", "lengthen the period to 2s"),
    (HETEROGENEITY, ONCE, "random: {every: 1s, for: 10s, seed: 1}", "for example to 20s"),
    (HETEROGENEITY, "- {at", '- {src: "edge.*", dst: "fog.*", at: 1s, for: 1s, jitter: 6ms}\n  - {at', "lower the jitter to 5ms"),
    # a quantity without its unit, or of another kind
    (NETWORK, "delay: 5ms", "delay: 10 parsecs", "write 10ms"),
    (NETWORK, "delay: 5ms", "delay: 5", "write 5ms"),
    (NETWORK, "rate: 100mbit", "rate: 0mbit", "write for example 100mbit"),
    (NETWORK, "rate: 100mbit", "rate: 100mbit, loss: 200%", "write for example 1%"),
    (HETEROGENEITY, "cpu: 40%", "cpu: 40", "write for example 25%"),
    (HETEROGENEITY, "cpu: 40%", "memory: 300", "write for example 1GiB"),
    (HETEROGENEITY, "cpu: 40%", "uplink: 20", "write for example 100mbit"),
    (HETEROGENEITY, "cpu: 40%", "read: 20", "write for example 20MB/s"),
    (HETEROGENEITY, "cpu: 40%", "read_latency: 5", "write for example 5ms"),
    (HETEROGENEITY, ONCE, "at: soon, for: 10s", "write for example 10s"),
    # an unknown name
    (LAYERS, "cluster: paradoxe", "queue: produktion", "write production"),
    (WORKFLOW, ALL, PLAY.replace("GROUPING", "roundrobin").replace("SELECTOR", "edge.*"), "write round_robin"),
    (HETEROGENEITY, ONCE + ', src: "edge.*", dst: "cloud.*", symmetric: true, rate: 4mbit', ONCE + ', src: "edge.*", dst: "cloud.*", profile: ltee', "did you mean `lte`?"),
    (HETEROGENEITY, ONCE, ONCE + ", profile: lte", "remove `symmetric`, `rate`"),
    (HETEROGENEITY, "- {at", '- {src: "edge.*", dst: "fog.*", at: 1s, for: 1s, delay: 1m}\n  - {at', "write for example 10ms"),
    (WORKLOAD, "model: resnet8", "model: resnet9", "did you mean `resnet8`?"),
    (WORKLOAD, "model: resnet8", "model: zzz", "use mlp"),
    (WORKLOAD, "dataset: digits", "dataset: digit", "did you mean `digits`?"),
    (WORKLOAD, "name: sgd", "name: sdg", "write sgd"),
    (WORKLOAD, "name: makespan", "name: speed", "write "),
    (WORKLOAD, STRATEGY, "strategy: bounded_stalenes", "did you mean `bounded_staleness`?"),
    (WORKLOAD, STRATEGY, "strategy: {name: topk}", "write `compress: {name: topk"),
    (WORKLOAD, STRATEGY, "strategy: {name: allreduce, compress: topp}", "did you mean `topk`?"),
    # names and texts of a certain form
    (LAYERS, "name: fog", "name: 'fog; rm -rf /'", "write for example fog"),
    (LAYERS, "layers:  ", "layers:\n  - {name: all, services: []}\n#", "write for example all-hosts"),
    (LAYERS, "quantity: 2", "quantity: 2\n  - {name: cloud, services: []}", "write for example cloud2"),
    (LAYERS, "cluster: paradoxe", "walltime: 2h", 'write for example "02:00:00"'),
    (LAYERS, "cluster: paradoxe", "walltime: 7200", 'write for example "02:00:00"'),
    (LAYERS, "cluster: paradoxe", "reservation: tomorrow", 'write for example "2027-01-31 19:00:00"'),
    (LAYERS, "cluster: paradoxe", "env_name: debian12-nfs", "add `job_type: [deploy]`"),
    # patterns
    (NETWORK, 'src: "edge.*"', 'src: "edgy.*"', "did you mean edge.*?"),
    (NETWORK, 'src: "edge.*"', 'src: "edge.trainr.*"', "did you mean edge.trainer.*?"),
    (NETWORK, 'src: "edge.*"', 'src: "trainer.*"', "did you mean *.trainer.*?"),
    (NETWORK, 'src: "edge.*"', 'src: "zzz.*"', "or * for all hosts"),
    (NETWORK, 'src: "edge.*"', 'src: "~["', "or * for all hosts"),
    (NETWORK, 'src: "edge.*"', 'src: ""', "or * for all hosts"),
    (NETWORK, 'src: "edge.*"', 'src: "edge.*; reboot"', "or * for all hosts"),
    (NETWORK, 'src: "edge.*"', 'src: "fog.trainer.1.1", dst: "fog.trainer.1.1", delay: 1ms, rate: 1mbit}\n  - {src: "edge.*"', "name two hosts"),
    (HETEROGENEITY, 'dst: "cloud.*"', 'dst: "cluod.*"', "did you mean cloud.*?"),
    (HETEROGENEITY, 'hosts: "edge.*"', 'hosts: "edge.trainer.1.9"', "did you mean edge.trainer.1."),
    (WORKFLOW, ALL, "[{hosts: nobody.*}]", "or * for all hosts"),
    (WORKFLOW, ALL, PLAY.replace("SELECTOR", "edg.*").replace("GROUPING", "asarray"), "did you mean edge.*?"),
    (WORKLOAD, '"edge.*"]', '"egde.*"]', "did you mean edge.*?"),
    # settings that exclude each other
    (WORKLOAD, "dataset: digits", "dataset: {name: synthetic, kind: tokens}", "use `model: transformer`"),
    (WORKLOAD, "name: sgd", "name: adam", "remove the key"),
    (WORKLOAD, STRATEGY, "strategy: {name: backup_workers, backups: 4}", "set backups to 3 or less"),
    (WORKLOAD, STRATEGY, "strategy: {name: hop, graph: complete, backups: 3}", "set backups to 2 or less"),
    (WORKLOAD, STRATEGY, "strategy: {name: hop, graph: ring, backups: 2}", "set backups to 1 or less"),
    (WORKLOAD, STRATEGY, "strategy: {name: hop, staleness: 9}", "set max_iteration_gap to 10 or more"),
    (WORKLOAD, STRATEGY, "strategy: {name: hop, skip: 2, staleness: 0, backups: 0}", "remove it"),
    (WORKLOAD, STRATEGY, "strategy: {name: hierarchical, tier_steps: 9}", "write `wan_steps: 9`"),
    (WORKLOAD, STRATEGY, "strategy: {name: local_sgd, compress: powersgd}", "use topk or fp16"),
    (WORKLOAD, STRATEGY, "strategy: {name: ad_psgd, balanced_batches: true}", "remove balanced_batches"),
    (WORKLOAD, STRATEGY, "strategy: {name: allreduce, balanced_batches: {least_gain: 0.1}}", "write min_gain"),
    (WORKLOAD, STRATEGY, "checkpoint_every: 9\nstrategy: asynchronous", "remove it"),
    (WORKLOAD, STRATEGY, "churn: [{at: 9s, leaves: edge.trainer.1.1}]", "remove `churn`"),
    (WORKLOAD, STRATEGY, CHURN + "[{at: 9s, leaves: edge.trainer.1.9}]", "did you mean edge.trainer.1."),
    (WORKLOAD, STRATEGY, CHURN + "[{at: 9s, leaves: edge.*, joins: edge.*}]", "remove `joins`"),
    (WORKLOAD, STRATEGY, CHURN + "[{at: 9s}]", "remove this entry"),
    (WORKLOAD, STRATEGY, CHURN + "[{at: 9s, joins: '*'}]", "remove the `joins` entry"),
    (WORKLOAD, STRATEGY, CHURN + "[{at: 9s, leaves: edge.*}, {at: 10s, leaves: edge.*}]", "or remove this entry"),
    (HETEROGENEITY, "dynamic:  ", '  - {src: "edge.*", dst: "fog.*", distribution: normal}\ndynamic:  ', "add `jitter: 0ms`"),
    (HETEROGENEITY, "dynamic:  ", '  - {src: "edge.*", dst: "fog.*", jitter: 9ms}\ndynamic:  ', "lower the jitter to 5ms"),
    (HETEROGENEITY, "dynamic:  ", '  - {src: "edge.*", dst: "fog.*", jitter: abc}\ndynamic:  ', "write for example"),
    (HETEROGENEITY, "dynamic:  ", '  - {src: "edge.*", dst: "fog.*", burst: 0}\ndynamic:  ', "write "),
    (HETEROGENEITY, "dynamic:  ", '  - {between: ["edge.*"], shared: 9mbit}\ndynamic:  ', "add an entry, such as"),
]  # fmt: skip


def _check(folder: Path) -> list[dict[str, object]]:
    """Return the problems that `laggard check --json` reports; none if it passes."""
    result = CliRunner().invoke(main, ["check", str(folder), "--json"])
    assert result.exit_code in (0, 2), result.output
    answer = json.loads(result.stdout)
    problems: list[dict[str, object]] = answer.get("problems", [])
    assert (result.exit_code == 0) == (not problems)
    return problems


def _read_edits(problem: dict[str, object]) -> tuple[Edit, ...]:
    edits = problem["edits"]
    assert isinstance(edits, list)
    return tuple(Edit(tuple(each["key"]), each["value"], each["removes"]) for each in edits)


def _apply(path: Path, edits: Sequence[Edit]) -> None:
    value: YamlValue = parse_yaml(path.read_bytes(), path.name).value
    path.write_bytes(dump_yaml(apply_edits(value, edits)))


def _is_told(edit: Edit, fix: str) -> bool:
    """Return whether the words of a fix name what an edit writes or removes."""
    words = [str(part) for part in edit.key[-2:] if isinstance(part, str)]
    if not edit.removes:
        words += [str(edit.value), show_value(edit.value)]
        words += list(edit.value) if isinstance(edit.value, dict) else []
    return any(word in fix for word in (*words, "remove", "write", "did you mean", "empty"))


@pytest.mark.parametrize(("name", "old", "new", "advice"), MISTAKES)
def test_the_suggested_fix_of_a_mistake_passes_check(
    name: str, old: str, new: str, advice: str, tmp_path: Path
) -> None:
    files = template()
    assert old in files[name]
    files[name] = files[name].replace(old, new, 1) if old else new
    folder = write(tmp_path / "mine", files)
    problems = _check(folder)
    assert problems
    assert any(advice in str(problem["fix"]) for problem in problems), problems
    for problem in problems:
        assert str(problem["path"]).startswith(str(folder))
        assert all(problem[part] for part in ("line", "column", "value", "rule", "fix")), problem
    corrected = {edit for problem in problems for edit in map(repr, _read_edits(problem))}
    assert corrected
    # One mistake may be reported for several keys; each of their fixes is one for all.
    _apply(Path(str(problems[0]["path"])), _read_edits(problems[0]))
    assert all(_is_told(edit, str(problems[0]["fix"])) for edit in _read_edits(problems[0]))
    assert _check(folder) == []
