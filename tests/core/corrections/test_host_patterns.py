"""A suggested host pattern selects hosts, and for a group exactly the group's."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from laggard.core.corrections.host_patterns import (
    check_pattern,
    correct_pattern,
    name_group,
    warn_ambiguous_groups,
)
from laggard.core.edits import apply_edits
from laggard.core.hosts import Host, select_hosts
from laggard.core.yaml_source import YamlSource


def _host(layer: str, layer_id: int, service: str, numbers: tuple[int, int], *roles: str) -> Host:
    name = f"{layer}.{service}.{numbers[0]}.{numbers[1]}"
    return Host(name, layer, service, *numbers, roles=roles, layer_id=layer_id)


HOSTS = (
    _host("cloud", 1, "trainer", (1, 1)),
    _host("fog", 2, "gateway", (1, 1), "gw"),
    _host("fog", 2, "trainer", (2, 1)),
    _host("edge", 3, "gateway", (1, 1), "gw"),
    _host("edge", 3, "gateway", (1, 2), "gw"),
    _host("edge", 3, "trainer", (2, 1), "slow"),
)
SOURCE = YamlSource("f", {"hosts": ""}, {("hosts",): (1, 1)})


@pytest.mark.parametrize(
    ("group", "pattern"),
    [
        ("edge", "edge.*"),
        ("trainer", "*.trainer.*"),
        ("gw", "fog.gateway.1.*,edge.gateway.1.*"),
        ("3_1", "edge.gateway.1.*"),
        ("slow", "edge.trainer.2.*"),
    ],
)
def test_the_pattern_of_a_group_selects_all_its_hosts(group: str, pattern: str) -> None:
    members = {host.name for host in HOSTS if group in host.groups}
    assert name_group(group, HOSTS) == pattern
    assert {host.name for host in select_hosts(pattern, HOSTS)} == members


def test_a_warning_about_a_role_names_its_hosts() -> None:
    (warning,) = warn_ambiguous_groups(SOURCE, ("hosts",), "gw", HOSTS)
    assert warning.fix == "to name all its hosts, write fog.gateway.1.*,edge.gateway.1.*"
    value = apply_edits(SOURCE.value, warning.edits)
    assert value == {"hosts": "fog.gateway.1.*,edge.gateway.1.*"}


@pytest.mark.parametrize(
    ("pattern", "near"),
    [
        ("edgy.*", "edge.*"),
        ("gw.*", "fog.gateway.1.*,edge.gateway.1.*"),
        ("gateway.*", "*.gateway.*"),
        ("edge.gatewy.*", "edge.gateway.*"),
        ("edge.gateway.1.3", "edge.gateway.1.2"),
        ("edge.*:&gw.*", "*"),
        ("fogg.*,edge.*", "fog.*,edge.*"),
        ("slwo", "edge.trainer.2.*"),
        ("zzz", "*"),
        ("~[", "*"),
        ("", "*"),
    ],
)
def test_the_nearest_pattern_is_suggested(pattern: str, near: str) -> None:
    correction = correct_pattern(pattern, HOSTS, ("hosts",))
    assert apply_edits(SOURCE.value, correction.edits) == {"hosts": near}
    assert near in correction.text


@given(st.text(alphabet="edgfocltrainw.*?!&:,~[]01 -", max_size=20))
@settings(max_examples=500, deadline=None, derandomize=True)
def test_a_suggested_pattern_always_selects_hosts(pattern: str) -> None:
    for problem in check_pattern(SOURCE, ("hosts",), pattern, HOSTS):
        (edit,) = problem.edits
        assert isinstance(edit.value, str)
        assert select_hosts(edit.value, HOSTS)
        assert edit.value in problem.fix
