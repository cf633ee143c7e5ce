"""The choice of backend follows what the kernel really accepts."""

from __future__ import annotations

import subprocess

import pytest

from laggard.core.errors import PrerequisiteError
from laggard.network_emulation import probe


def test_the_probe_agrees_with_the_kernel() -> None:
    if probe.shutil.which("tc") is None:
        assert probe.netem_refusal() == "the program `tc` is not installed"
        return
    command = (
        "unshare",
        "--user",
        "--map-root-user",
        "--net",
        "tc",
        "qdisc",
        "add",
        "dev",
        "lo",
        "root",
        "netem",
    )
    accepted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    assert probe.kernel_has_netem() is accepted


@pytest.mark.parametrize(
    ("requested", "refusal", "expected"),
    [
        ("auto", "", "netem"),
        ("auto", "qdisc kind is unknown", "userspace"),
        ("userspace", "", "userspace"),
        ("userspace", "qdisc kind is unknown", "userspace"),
        ("netem", "", "netem"),
    ],
)
def test_choice(
    monkeypatch: pytest.MonkeyPatch, requested: probe.Requested, refusal: str, expected: str
) -> None:
    monkeypatch.setattr(probe, "netem_refusal", lambda: refusal)
    assert probe.choose_backend(requested) == expected


def test_netem_by_name_on_a_kernel_without_it_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "netem_refusal", lambda: "Error: Specified qdisc kind is unknown.")
    with pytest.raises(PrerequisiteError, match="modprobe") as caught:
        probe.choose_backend("netem")
    assert "kind is unknown" in caught.value.missing


def test_a_machine_without_tc_has_no_netem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert not probe.kernel_has_netem()
