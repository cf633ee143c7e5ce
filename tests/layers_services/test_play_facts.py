"""Plays that cannot see gathered facts."""

from __future__ import annotations

import pytest

from laggard.layers_services.e2clab.play_facts import can_see_facts

SHELL = {"shell": "echo {{ _self.url }}", "register": "said"}


@pytest.mark.parametrize(
    ("play", "sees"),
    [
        ({"launch": [SHELL]}, False),
        (
            {
                "launch": [SHELL],
                "prepare": [{"copy": {"content": "{{ said.stdout }}", "dest": "/tmp/x"}}],
            },
            False,
        ),
        (
            {
                "launch": [
                    {"ansible.builtin.shell": "true", "when": "rate > 1", "vars": {"rate": 2}}
                ]
            },
            False,
        ),
        (
            {
                "launch": [SHELL],
                "depends_on": [{"service_selector": "cloud.*", "prefix": "server"}],
            },
            False,
        ),
        ({"launch": [{"shell": "echo {{ ansible_hostname }}"}]}, True),
        ({"launch": [SHELL | {"when": "ansible_facts['os_family'] == 'Debian'"}]}, True),
        ({"launch": [{"debug": {"msg": "{{ hostvars[x] }}"}}]}, True),
        ({"launch": [{"debug": {"msg": "{{ lookup('vars', name) }}"}}]}, True),
        ({"launch": [{"debug": {"var": "vars"}}]}, True),
        ({"launch": [{"template": {"src": "a.j2", "dest": "/tmp/a"}}]}, True),
        ({"launch": [{"apt": {"name": "tmux"}}]}, True),
        ({"launch": [{"include_tasks": "more.yaml"}]}, True),
        ({"launch": [{"block": [SHELL]}]}, True),
        ({"launch": [SHELL | {"with_fileglob": "*.yaml"}]}, True),
        ({"launch": ["shell: true"]}, True),
        ({"launch": [SHELL], "roles": ["docker"]}, True),
        ({"launch": [SHELL], "vars_files": ["more.yaml"]}, True),
        ({"launch": [SHELL], "gather_facts": True}, True),
        ({"launch": [SHELL], "handlers": [{"service": {"name": "cron"}}]}, True),
    ],
)
def test_what_may_see_facts(play: dict[str, object], sees: bool) -> None:
    assert can_see_facts({"hosts": "edge.*"} | play) is sees


@pytest.mark.parametrize(
    ("other", "sees"), [({"fast": {"rate": 3}}, False), ({"a": {"b": "{{ ansible_fqdn }}"}}, True)]
)
def test_what_fills_a_play_counts_too(other: object, sees: bool) -> None:
    assert can_see_facts({"hosts": "edge.*", "launch": [SHELL]}, other) is sees
