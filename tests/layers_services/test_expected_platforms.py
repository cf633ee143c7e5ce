"""Platforms that are known before nodes are reserved."""

from __future__ import annotations

from pathlib import Path

import pytest

from laggard.core.errors import DeploymentError
from laggard.layers_services.environment import expected_platforms
from laggard.layers_services.environment.expected_platforms import (
    fetch_expected_wheels,
    find_platform,
    recall_platforms,
    remember_platforms,
)
from laggard.layers_services.environment.wheel_plan import Platform

DEBIAN = Platform((3, 11), "x86_64", (2, 36))
BOARD = Platform((3, 12), "aarch64", (2, 39), "cuda")


@pytest.mark.parametrize(
    ("system", "platform"),
    [
        ("debian12-nfs", DEBIAN),
        ("CC-Ubuntu24.04", Platform((3, 12), "x86_64", (2, 39))),
        ("CC-Ubuntu24.04-CUDA", Platform((3, 12), "x86_64", (2, 39))),
        ("debian11-min", None),
        ("", None),
    ],
)
def test_a_systems_name_tells_its_platform(system: str, platform: Platform | None) -> None:
    assert find_platform(system) == platform


def test_the_platforms_of_the_last_run_are_known(tmp_path: Path) -> None:
    assert recall_platforms("g5k", tmp_path / "cache") == ()
    remember_platforms("g5k", [DEBIAN, BOARD, DEBIAN], tmp_path / "cache")
    assert recall_platforms("g5k", tmp_path / "cache") == (DEBIAN, BOARD)
    assert recall_platforms("iotlab", tmp_path / "cache") == ()
    (tmp_path / "cache" / "platforms-g5k.json").write_text('[{"python": "x"}]')
    assert recall_platforms("g5k", tmp_path / "cache") == ()


def test_wheels_are_fetched_once_and_a_failure_is_only_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fetched = []

    def fetch(platform: Platform) -> None:
        fetched.append(platform)
        if platform == DEBIAN:
            raise DeploymentError("the package index cannot be reached")

    monkeypatch.setattr(expected_platforms, "wheel_set", fetch)
    monkeypatch.setattr(expected_platforms, "default_cache", lambda: tmp_path)
    remember_platforms("g5k", [BOARD, DEBIAN])
    fetch_expected_wheels("g5k", [DEBIAN, DEBIAN])
    assert fetched == [DEBIAN, BOARD]
    assert "the package index cannot be reached" in caplog.text
