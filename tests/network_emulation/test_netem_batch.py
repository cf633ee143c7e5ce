"""Queues of real namespaces changed by a `tc` that stays there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from laggard.core.errors import EmulationError
from laggard.network_emulation.links.netem.execute import InNamespaces

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may make a network namespace without a user namespace"
)


@contextmanager
def namespace() -> Iterator[Path]:
    """A network namespace that lives as long as a process in it."""
    with subprocess.Popen(
        ["unshare", "--net", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as keeper:
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        keeper.stdin.write(b"x")
        keeper.stdin.flush()
        keeper.stdout.read(1)  # by then it is `cat`, in its namespace
        yield Path(f"/proc/{keeper.pid}/ns/net")
        keeper.stdin.close()


@pytest.fixture
def hosts() -> Iterator[InNamespaces]:
    with ExitStack() as stack:
        execute = InNamespaces({name: stack.enter_context(namespace()) for name in ("a", "b")})
        stack.callback(execute.close)
        yield execute


def limit(execute: InNamespaces, host: str) -> str:
    return execute(host, ("tc", "qdisc", "show", "dev", "lo")).split("limit ")[-1].strip()


def test_all_changes_are_in_effect_when_it_returns(hosts: InNamespaces) -> None:
    hosts.expect_changes(["a", "b"])
    for packets in range(5, 25):
        lines = (
            f"qdisc replace dev lo root pfifo limit {packets - 1}\nqdisc change dev lo root pfifo"
            f" limit {packets}\n"
        )
        hosts.change({"a": lines, "b": lines})
        assert limit(hosts, "a") == limit(hosts, "b") == f"{packets}p"


def test_what_prints_nothing_is_waited_for_too(hosts: InNamespaces) -> None:
    hosts.change({"a": "class show dev lo\n", "b": ""})
    hosts.change({"b": "qdisc replace dev lo root pfifo limit 7\n"})
    assert limit(hosts, "b") == "7p"


def test_a_change_that_fails_says_where_and_why_and_the_next_one_works(hosts: InNamespaces) -> None:
    good, bad = (
        "qdisc replace dev lo root pfifo limit 7\n",
        "qdisc change dev lo root nonsense limit 7\n",
    )
    with pytest.raises(
        EmulationError,
        match=r"b: tc failed: .*nonsense.* in `qdisc change dev lo root nonsense limit 7`",
    ):
        hosts.change({"a": good, "b": good + bad})
    hosts.change({"a": good, "b": good})
    assert limit(hosts, "b") == "7p"


def test_a_tc_that_was_killed_is_told_and_replaced(hosts: InNamespaces) -> None:
    line = "qdisc replace dev lo root pfifo limit 7\n"
    hosts.change({"a": line})
    subprocess.run(["pkill", "-KILL", "-P", str(os.getpid()), "-x", "tc"], check=True)
    with pytest.raises(EmulationError, match="a: tc"):
        hosts.change({"a": line})
    hosts.change({"a": line})
