"""Crates satisfy RO-Crate 1.1 and Process Run Crate 0.5, by the validator of their authors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import rocrate
from click.testing import CliRunner

from laggard.cli.main import main
from laggard.crate.crate_metadata import PROFILE
from tests.reproduce.originals import make_original

VALIDATOR = "roc-validator==0.13.0"
# The profiles are those that the validator contains. It would fetch the meaning of the terms from
# the network; here it gets that of the `rocrate` package, which defines all terms of a crate.
SCRIPT = """
import json, sys
import requests
from rocrate_validator import models, services
from rocrate_validator.utils.document_loader import install_document_loader
from rocrate_validator.utils.http import HttpRequester

def answer(self, url, *arguments, **options):
    response = requests.Response()
    response.url, response.status_code = url, 200 if "/ro/crate/" in url else 404
    response.headers["Content-Type"] = "application/ld+json"
    response._content = open(sys.argv[1], "rb").read()
    return response

HttpRequester.get = answer
install_document_loader()
issues = []
for profile in sys.argv[3:]:
    result = services.validate(services.ValidationSettings(
        rocrate_uri=sys.argv[2],
        profile_identifier=profile,
        requirement_severity=models.Severity.RECOMMENDED,
    ))
    issues += [[each.severity.name, each.check.identifier, each.message]
               for each in result.get_issues()]
print("issues:", json.dumps(issues))
"""
UNKNOWN = ("author", "publisher", "agent")
"""What a crate should state, and Laggard does not know."""


@pytest.fixture(scope="module")
def validator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment of its own, since the validator needs another version of rich."""
    folder = tmp_path_factory.mktemp("validator")
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin/python"
    command = [str(python), "-m", "pip", "install", "--quiet", VALIDATOR]
    subprocess.run(command, check=True)
    return python


def export(source: str, runs: Path, crate: Path) -> Path:
    arguments = ["export", source, "--crate", "--out", str(crate), "--runs", str(runs)]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return crate


@pytest.fixture(scope="module")
def crates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The crates of a run and of a campaign."""
    root = tmp_path_factory.mktemp("crates")
    runs = root / "runs"
    run = make_original(runs)
    campaign = runs / "campaigns/sweep"
    campaign.mkdir(parents=True)
    (campaign / "results.csv").write_text(f"run,status,folder\n{run.name},done,{run}\n")
    (campaign / "campaign.yaml").write_text("scenario: small\n")
    return {
        "run": export(str(run), runs, root / "run"),
        "campaign": export("sweep", runs, root / "campaign"),
    }


@pytest.mark.long
@pytest.mark.parametrize("kind", ["run", "campaign"])
def test_a_crate_is_valid(crates: dict[str, Path], validator: Path, kind: str) -> None:
    terms = Path(rocrate.__file__).parent / "data/ro-crate.jsonld"
    profiles = ("ro-crate-1.1", "process-run-crate")
    command = [str(validator), "-c", SCRIPT, str(terms), str(crates[kind]), *profiles]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    issues = json.loads(done.stdout.rpartition("issues:")[2])
    assert [each for each in issues if not any(name in each[2] for name in UNKNOWN)] == []


def test_a_crate_states_both_versions(crates: dict[str, Path]) -> None:
    for crate in crates.values():
        document = json.loads((crate / "ro-crate-metadata.json").read_text())
        entities = {each["@id"]: each for each in document["@graph"]}
        assert document["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
        assert entities["ro-crate-metadata.json"]["conformsTo"]["@id"].endswith("/ro/crate/1.1")
        assert entities["./"]["conformsTo"] == {"@id": PROFILE}
        assert PROFILE.endswith("/process/0.5")
        assert (
            "RO-Crate 1.1 with the profile Process Run Crate 0.5" in entities["./"]["description"]
        )
