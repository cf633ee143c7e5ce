"""Requests to several agents at once, over sessions that are queues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import JsonValue

from laggard.remote.agent.operations import LEAVE
from tests.remote.agent_sessions import HOSTS, Sessions, make_pool


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (None, HOSTS),
        ({}, ()),  # `leave` of a run whose data could not be fetched from any node
        ({HOSTS[1]: {}}, HOSTS[1:2]),
        ({host: {"of": host} for host in HOSTS[1:]}, HOSTS[1:]),
    ],
)
def test_only_the_chosen_hosts_are_asked(
    arguments: Mapping[str, Mapping[str, JsonValue]] | None, asked: tuple[str, ...], tmp_path: Path
) -> None:
    sessions = Sessions()
    results = make_pool(sessions, tmp_path).call_all(LEAVE, arguments)
    assert tuple(sessions.asked) == asked
    assert results == dict.fromkeys(asked)
    given = {host: each["argument"] for host, each in sessions.written if each["kind"] == "request"}
    assert given == {host: (arguments or {}).get(host, {}) for host in asked}
