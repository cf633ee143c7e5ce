"""A failed task is told in a few lines; its full record is kept, except what `no_log` hides."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from laggard.layers_services.e2clab.ansible_runs import failure_reason, working_in
from laggard.layers_services.e2clab.failed_tasks import format_failed_tasks, keep_failed_tasks


@dataclass(frozen=True)
class Record:
    host: str
    task: str = "install the tool"
    status: str = "FAILED"
    payload: dict[str, object] = field(default_factory=dict)


class EnosError(Exception):
    def __init__(self, hosts: list[Record]) -> None:
        super().__init__(hosts)
        self.hosts = hosts


SHELL: dict[str, object] = {
    "cmd": "make install",
    "rc": 3,
    "msg": "non-zero return code",
    "stdout": "\n".join(f"line {i}" for i in range(1, 31)),
    "stderr": "no rule\n\nstop",
    "invocation": {"module_args": {"_raw_params": "make install", "chdir": None}},
    "stdout_lines": ["line 1"],
}


def test_task_hosts_command_and_last_lines_are_told() -> None:
    records = [Record("edge.2", payload=SHELL), Record("edge.1", payload=SHELL)]
    assert format_failed_tasks(records).splitlines() == [
        "edge.1, edge.2: task `install the tool` failed with exit status 3",
        "  command: make install",
        "  last lines:",
        *(f"    line {i}" for i in range(25, 31)),
        "    no rule",
        "    stop",
    ]


def test_a_module_is_told_by_its_arguments_and_its_message() -> None:
    payload: dict[str, object] = {
        "msg": "No package matching 'toool' is available",
        "invocation": {"module_args": {"name": ["toool"], "state": "present", "deb": None}},
    }
    assert format_failed_tasks([Record("edge.1", payload=payload)]).splitlines() == [
        "edge.1: task `install the tool` failed",
        "  command: name=['toool'] state=present",
        "  last lines:",
        "    No package matching 'toool' is available",
    ]


def test_an_unreachable_host_and_a_command_of_several_words() -> None:
    unreachable = Record("edge.1", "ping", "UNREACHABLE", {"msg": "timed out"})
    words = Record("fog.1", "run", payload={"cmd": ["echo", "a b"], "rc": 1, "stderr": "x"})
    assert format_failed_tasks([unreachable, words]).splitlines() == [
        "edge.1: task `ping` unreachable",
        "  last lines:",
        "    timed out",
        "fog.1: task `run` failed with exit status 1",
        "  command: echo 'a b'",
        "  last lines:",
        "    x",
    ]


def test_many_failures_hosts_and_characters_are_cut_and_escaped() -> None:
    alike = [Record(f"edge.{i:02}", payload={"stderr": "x" * 5000}) for i in range(40)]
    others = [Record("fog.1", f"task {i}", payload={"stderr": "\x1b[2J"}) for i in range(9)]
    text = format_failed_tasks([*alike, *others])
    assert text.startswith("edge.00, edge.01, edge.02, edge.03, edge.04 and 35 more hosts: task")
    assert text.endswith("and 7 more failures")
    assert max(map(len, text.splitlines())) < 320
    assert "\x1b" not in text


def test_full_records_are_kept_and_hidden_ones_are_not(tmp_path: Path) -> None:
    log = tmp_path / "failed_tasks.jsonl"
    secret = Record("edge.1", payload={**SHELL, "_ansible_no_log": True})
    assert "make install" not in format_failed_tasks([secret])
    keep_failed_tasks([Record("edge.1", payload=SHELL)], log)
    keep_failed_tasks([secret], log)
    first, second = map(json.loads, log.read_text(encoding="utf-8").splitlines())
    assert first == {
        "host": "edge.1", "task": "install the tool", "status": "FAILED", "payload": SHELL,
    }  # fmt: skip
    assert second["payload"] == {"no_log": True}


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_records_of_an_error_are_found_behind_others(tmp_path: Path, wrapped: bool) -> None:
    inner = EnosError([Record("edge.1", payload=SHELL)])
    error = RuntimeError(inner) if wrapped else RuntimeError("E2Clab failed")
    error.__cause__ = inner
    log = tmp_path / "failed_tasks.jsonl"
    lines = failure_reason(error, log).splitlines()
    assert lines[0] == "edge.1: task `install the tool` failed with exit status 3"
    assert lines[-1] == f"  full record: {log}"
    assert len(log.read_text(encoding="utf-8").splitlines()) == 1
    assert failure_reason(KeyError("x")) == "KeyError: 'x'"


def test_raw_records_stay_off_the_screen(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("enoslib.api")
    with working_in(tmp_path):
        logger.error("Failed hosts: %s", [SHELL])
        logger.error("Unreachable hosts: %s", [SHELL])
        logger.error("another message")
    logger.error("Failed hosts: later")
    assert [record.getMessage() for record in caplog.records] == [
        "another message", "Failed hosts: later",
    ]  # fmt: skip
