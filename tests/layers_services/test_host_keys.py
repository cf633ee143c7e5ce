"""Host keys: the settings of ssh, the explanation of a refusal, and both with real SSH servers."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laggard.core.errors import InputError
from laggard.layers_services.machine import Access
from laggard.layers_services.ssh.host_keys import (
    RESERVATION_FILE,
    ReservationKeys,
    explain_refusal,
)
from tests.faults import Fault, holds
from tests.remote.remote_scenario import REPOSITORY
from tests.testbed.nodes import lacking
from tests.users import Runner

FINGERPRINT = "SHA256:+0Q9eA1T+hJAtY0Rud95+h9Nqaigz8qFPpOfvWWXqro"


def _changed(path: str) -> str:
    return (
        f"@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\r\n{FINGERPRINT}.\r\n"
        f"Offending ED25519 key in {path}:3\r\n  remove with:\r\n"
        "Host key for [gw]:2222 has changed and you have requested strict checking.\r\n"
        "Host key verification failed.\r\n"
    )


def test_a_file_of_the_reservation_is_private_and_can_be_emptied(tmp_path: Path) -> None:
    keys = ReservationKeys.create(tmp_path)
    keys.path.write_text("node ssh-ed25519 AAAA\n")
    keys.forget()
    assert keys.path == tmp_path / RESERVATION_FILE
    assert keys.path.read_text() == ""
    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["plain", "a b", "50%", "it's", "#1", "é~"])
@pytest.mark.parametrize("deployed", [False, True])
def test_ssh_reads_the_path_as_it_is(name: str, deployed: bool, tmp_path: Path) -> None:
    (folder := tmp_path / name).mkdir()
    keys = ReservationKeys.create(folder, deployed=deployed)
    words = Access("node", options=keys.options).ssh_arguments()
    said = subprocess.run(["ssh", "-F", "none", "-G", *words], check=True, capture_output=True)
    settings = dict(line.partition(" ")[::2] for line in said.stdout.decode().splitlines())
    assert settings["stricthostkeychecking"] == "accept-new"
    assert settings["userknownhostsfile"].replace("%%", "%").strip('"') == str(keys.path)
    assert (settings["globalknownhostsfile"] == "/dev/null") is deployed


@pytest.mark.parametrize("name", ['a"b', "a\\b", "${HOME}", "{{ x }}", "a\nb"])
def test_a_path_that_ssh_would_misinterpret_is_refused(name: str, tmp_path: Path) -> None:
    (folder := tmp_path / name).mkdir()
    with pytest.raises(InputError, match="choose another folder with --runs"):
        ReservationKeys.create(folder)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", None),
        ("Permission denied (publickey).", None),
        (
            _changed(f"/runs/x/{RESERVATION_FILE}"),
            (
                f"[gw]:2222 shows another host key ({FINGERPRINT}); the key of the first contact must"
                f" not change, recorded in /runs/x/{RESERVATION_FILE}, line 3 — another machine may"
                " answer in its place; if you reinstalled the machine yourself, start a new run, which"
                " records the new key"
            ),
        ),
        (
            _changed("/home/me/.ssh/known_hosts"),
            (
                f"[gw]:2222 shows another host key ({FINGERPRINT}); the key of the first contact must"
                " not change, recorded in /home/me/.ssh/known_hosts, line 3 — another machine may"
                " answer in its place; if you reinstalled the machine yourself, run ssh-keygen -f"
                ' "/home/me/.ssh/known_hosts" -R "[gw]:2222"'
            ),
        ),
        (
            "Host key verification failed.\r\nConnection closed by UNKNOWN port 65535",
            (
                "ssh knows no host key of the jump host, and a jump host's key is not accepted"
                " automatically — connect to the jump host once with ssh, compare the fingerprint with"
                " the published one, then run again"
            ),
        ),
    ],
)
def test_a_refusal_is_explained(said: str, expected: str | None) -> None:
    assert explain_refusal(said) == expected


@given(st.text(), st.text())
def test_an_explanation_is_one_printable_line(path: str, around: str) -> None:
    explained = explain_refusal(around + _changed(path) + around)
    assert explained is not None
    assert explained.isprintable()


SCRIPT = f"""
    import json, os, subprocess, sys
    from pathlib import Path
    sys.path.insert(0, {str(REPOSITORY)!r})
    from dataclasses import replace
    from laggard.core.errors import LaggardError
    from laggard.core.hosts import Host
    from laggard.layers_services.local import sandbox
    from laggard.layers_services.machine import Machine
    from laggard.layers_services.ssh.enoslib_roles import enoslib_roles_of
    from laggard.layers_services.ssh.host_keys import ReservationKeys
    from laggard.layers_services.ssh.remote_task import run_on_nodes
    from laggard.layers_services.ssh.send_files import send_files
    from tests.testbed.nodes import Boot, NodeSpec, start_nodes

    NAME = "node-1.example.org"
    host = Host("edge.trainer.1.1", "edge", "trainer", 1, 1, "172.30.0.1")
    os.environ["ANSIBLE_SSH_ARGS"] = ""  # no connection outlives its task
    os.environ["ANSIBLE_HOST_KEY_CHECKING"] = "False"

    def entered():
        here = Path.cwd()
        with start_nodes([NodeSpec(NAME, "172.30.0.1")], here / "nodes") as nodes:
            def reservation(name):
                (folder := here / name).mkdir()
                return ReservationKeys.create(folder)

            def access(keys):
                return replace(nodes.access(NAME), options=(*keys.options, "IdentitiesOnly=yes"))

            def tried(function):
                try:
                    function()
                except LaggardError as error:
                    return str(error)
                return "done"

            def ansible(keys):
                roles, _ = enoslib_roles_of([Machine(host, access(keys))])
                return tried(lambda: run_on_nodes(roles, {{host.name: "true"}}, "a test"))

            def send(keys):
                (file := here / "w").write_text("x")
                return tried(lambda: send_files("n", access(keys), "/usr/bin/python3", "d", {{"w": file}}))

            first = reservation("first")
            found = {{"sent": send(first), "first": first.path.read_text(), "ansible": ansible(first)}}
            found["same"] = first.path.read_text() == found["first"]
            nodes.reboot([NAME], Boot(deployed=True))
            found["changed"], found["changed ansible"] = send(first), ansible(first)
            second = reservation("second")
            found["second"], found["second ansible"] = ansible(second), send(second)
            found["second key"] = second.path.read_text()
            first.forget()
            found["forgotten"] = send(first)
            print(json.dumps(found))
        return 0

    sys.exit(sandbox.run_in_sandbox(entered))
"""


@holds(Fault.NODE_KEY_CHANGED)
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
def test_a_key_must_stay_the_same_within_a_reservation(own_runner: Runner) -> None:
    result = own_runner.run(SCRIPT, timeout_s=240)
    assert result.stdout, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["sent"] == found["ansible"] == "done"
    assert found["first"].startswith("172.30.0.1 ssh-ed25519 ")
    assert found["same"]
    for refused in (found["changed"], found["changed ansible"]):
        assert "172.30.0.1 shows another host key (SHA256:" in refused
        assert f"first/{RESERVATION_FILE}, line 1" in refused
        assert "start a new run" in refused
    assert found["second"] == found["second ansible"] == found["forgotten"] == "done"
    assert found["second key"] != found["first"]
