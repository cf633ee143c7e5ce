"""Workers that leave and join while machines with real SSH servers train, behind a bottleneck that
several senders and several receivers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.remote.remote_scenario import BOTTLENECK, measured_rates, run_script
from tests.testbed.nodes import lacking
from tests.users import Runner

pytestmark = [
    pytest.mark.skipif(lacking() is not None, reason=str(lacking())),
    pytest.mark.remote,
    pytest.mark.timeout(600),
]

CLOUD, STAYS, AWAY = "cloud.trainer.1.1", "edge.trainer.1.1", "edge.trainer.1.2"
RANKS = {CLOUD: 0, STAYS: 2, AWAY: 3}
# Rank 0 is late, so another rank opens the start barrier. Two ranks join at the same time.
CHURN = (
    f"[{{at: 1s, leaves: {AWAY}}}, {{at: 3s, joins: {AWAY}}}, {{at: 3s, joins: {CLOUD}}}, {{at: 1h,"
    f" leaves: {AWAY}}}]"
)
COMMON = (
    f"workload.churn={CHURN}",
    "workload.stop={time: 12s}",
    "workload.evaluate_every=60000",
)
MESHED = (*COMMON, "workload.strategy=gossip")
LIMITED = (
    *COMMON,
    "workload.strategy=asynchronous",
    'workload.placement={workers: ["cloud.*", "edge.*"], server: "cloud.*"}',
    'heterogeneity.deterministic=[{hosts: "*", cpu: 40%}, {between: ["cloud.*", "edge.*"], shared: 40mbit}]',
)

SCRIPT = """
    def play():
        with ssh_machines((1.5, 7.0, 40.25, 1000.0), environment=install_once(wheels)) as (nodes, names, options, on):
            found = {key: run(options, *settings) for key, settings in SETTINGS.items()}
            found["left"] = [on(name, "pgrep", "-f", "rank-") for name in names]
            # Packets of the bottleneck make detours, and are shaped where they arrive.
            found["left"] += [on(name, *words) for name in names for words in (
                ("ip", "route", "show", "via", "172.30.0.0/16"), ("ip", "-o", "link", "show", "type", "ifb"))]
            return found

    inside(play)
"""


def test_workers_leave_and_join_on_real_machines(own_runner: Runner) -> None:
    settings = {"meshed": MESHED, "limited": LIMITED}
    script = SCRIPT.replace("SETTINGS", repr(settings))
    found = run_script(own_runner, script, timeout_s=550, changed=BOTTLENECK)
    for key in settings:
        _check_turns(found[key])
        _check_steps(found[key])
        rates = measured_rates(Path(found[key]["folder"]))
        assert {requested for requested, _ in rates} == {40.0}
        assert all(measured < 1.05 * requested for requested, measured in rates)
    assert set(found["left"]) == {""}


def _check_turns(run: dict[str, Any]) -> None:
    assert run["status"] in {"done", "unfaithful"}, run["error"]
    assert run["outcome"]["stopped_by"] == "time"
    assert run["outcome"]["accuracy"] > 0.9
    assert run["lost_ranks"] == []
    turns = run["churn"]
    assert [(each["host"], each["kind"]) for each in turns[:1]] == [(AWAY, "left")]
    assert {(each["host"], each["kind"]) for each in turns[1:]} == {
        (AWAY, "joined"),
        (CLOUD, "joined"),
    }
    assert all(each["requested_s"] <= each["effective_s"] < 12 for each in turns)
    assert any("training ended before this churn entry was due" in each for each in run["warnings"])
    logs = {path.name for path in (Path(run["folder"]) / "logs").iterdir()}
    assert {"rank-0.log", "rank-2.log", "rank-3.log", "rank-3.2.log"} <= logs


def _check_steps(run: dict[str, Any]) -> None:
    steps = pd.read_parquet(Path(run["folder"]) / "steps.parquet")
    assert not steps.duplicated(["step", "rank"]).any()
    began_s = {rank: rows.start_ns.to_numpy() / 1e9 for rank, rows in steps.groupby("rank")}
    turns = {(each["host"], each["kind"]): each for each in run["churn"]}
    # The controller's clock and those of the nodes are fitted to each other within milliseconds.
    error_s = 0.05
    assert began_s[RANKS[STAYS]].min() < 0.5
    assert began_s[RANKS[CLOUD]].min() >= turns[CLOUD, "joined"]["requested_s"] - error_s
    away = began_s[RANKS[AWAY]]
    left_s = turns[AWAY, "left"]["effective_s"] + error_s
    assert not ((away > left_s) & (away < turns[AWAY, "joined"]["requested_s"])).any()
    assert (away < left_s).any()
    assert (away > turns[AWAY, "joined"]["requested_s"]).sum() > 5, "and goes on learning"
