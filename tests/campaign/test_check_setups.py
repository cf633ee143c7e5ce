"""Check of a campaign's setups: their sizes by testbed, and what makes a setup another one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from laggard.campaign.campaign_file import CampaignFile
from laggard.campaign.cells import CheckedSetup, list_setups
from laggard.campaign.check_setups import check_setups
from laggard.core.errors import ScenarioError
from tests.virtual.federated_scenario import write_federated

CLIENTS = 600


def check(folder: Path, *options: str) -> CheckedSetup:
    campaign = CampaignFile.model_validate({"scenario": str(folder)})
    (checked,) = check_setups(campaign, list_setups(campaign), options)
    return checked


def test_virtual_time_has_room_for_more_hosts_than_machines(tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "many")
    path = folder / "layers_services.yaml"
    layers = yaml.safe_load(path.read_text())
    layers["layers"][1]["services"][0]["quantity"] = CLIENTS
    path.write_text(yaml.safe_dump(layers))
    with pytest.raises(ScenarioError, match="supports at most 500"):
        check(folder)
    assert check(folder, "--on=virtual").digest


def test_another_map_of_clients_is_another_setup(tmp_path: Path) -> None:
    folder = write_federated(tmp_path / "mapped", {"births": {"clients": "clients.csv"}})
    digests = []
    for client in (0, 1, 0):
        (folder / "clients.csv").write_text(f"client,sample\n{client},0\n")
        digests.append(check(folder, "--on=virtual").digest)
    first, second, again = digests
    assert first == again != second
