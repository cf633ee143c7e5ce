"""Every command of the tutorial, as its reader types it."""

from __future__ import annotations

import csv
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from laggard.core.errors import InputError
from laggard.network_emulation.probe import kernel_has_netem
from tests.command_line import UNFAITHFUL, needs_tun
from tests.remote.remote_scenario import run_script
from tests.testbed.nodes import lacking
from tests.users import Runner

PAGE = Path(__file__).parents[2] / "docs/tutorial.md"
TRAINING = {"run", "campaign"}
RATES_ALONE = (
    'network.networks=[{src: "edge.*", dst: "cloud.*", delay: 0ms, rate: 50mbit, symmetric: true}]'
)

_BLOCK = re.compile(
    r'^```(?P<kind>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```', re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Step:
    """Something that the reader does: write a file, or type a command."""

    file: str = ""
    text: str = ""
    words: Sequence[str] = ()


def read_steps() -> list[Step]:
    """List the files and commands of the page in their order."""
    steps = []
    for block in _BLOCK.finditer(PAGE.read_text(encoding="utf-8")):
        if block["title"]:
            steps.append(Step(file=block["title"], text=block["text"]))
        elif block["kind"] == "console":
            lines = block["text"].splitlines()
            assert all(line.startswith("$ laggard ") for line in lines), lines
            steps += [Step(words=shlex.split(line.removeprefix("$ "))[1:]) for line in lines]
    return steps


def is_remote(step: Step) -> bool:
    return "g5k" in step.words


def split_steps() -> tuple[list[Step], list[Step]]:
    """Split the steps into those on the laptop and those from the first one on Grid'5000 on."""
    steps = read_steps()
    first = next(number for number, step in enumerate(steps) if is_remote(step))
    return steps[:first], steps[first:]


def complete(words: Sequence[str]) -> list[str]:
    """Add what a busy machine needs: failed checks are recorded, and do not end the run; the cells
    of the campaign have no figures."""
    added = [*(["--no-report"] if words[0] == "campaign" else []), "--fidelity", "record"]
    return [*words, *added] if words[0] in TRAINING else list(words)


def expand(words: Sequence[str], folder: Path) -> list[str]:
    """Expand the patterns of file names, as a shell does."""
    found: list[str] = []
    for word in words:
        matches = sorted(folder.glob(word)) if "*" in word else []
        found += [str(path.relative_to(folder)) for path in matches] or [word]
    return found


def test_the_tutorial_has_both_parts() -> None:
    local, remote = split_steps()
    assert {step.words[0] for step in local if step.words} >= {
        "init", "check", "plan", "run", "runs", "analyze", "compare", "campaign",
    }  # fmt: skip
    assert [step.words[0] for step in remote] == ["plan", "run", "runs", "destroy"]


@pytest.mark.long
@pytest.mark.timeout(1500)
@needs_tun
def test_the_part_on_a_laptop(tmp_path: Path) -> None:
    for step in split_steps()[0]:
        if step.file:
            (tmp_path / step.file).write_text(step.text, encoding="utf-8")
            continue
        words = expand(complete(step.words), tmp_path)
        command = [sys.executable, "-m", "laggard.cli.main", *words]
        done = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=480, check=False
        )
        accepted = {0, UNFAITHFUL} if words[0] in TRAINING else {0}
        if words[0] == "compare" and "has the status unfaithful" in done.stderr:
            # What a busy machine could not emulate is not compared.
            accepted = {InputError.exit_status}
        if words[0] == "campaign" and "unfaithful" in done.stdout:
            accepted = {1}
        assert done.returncode in accepted, (words, done.stdout[-3000:], done.stderr[-3000:])
        assert "Traceback" not in done.stderr
    assert (tmp_path / "runs/my-continuum/latest/report.html").is_file()
    table = tmp_path / "sweep-runs/campaigns/sweep/results.csv"
    with table.open(newline="", encoding="utf-8") as file:
        # A cell that a busy machine could not emulate has a reason of several lines.
        assert len(list(csv.DictReader(file))) == 4


SCRIPT = """
    def play():
        from tests.testbed.stand_in import stand_in
        with stand_in(here / "n", {"paradoxe": 4}, environment=install_once(wheels)) as grid:
            enter_account(grid)

            def laggard(words):
                done = subprocess.run([sys.executable, "-c", CLI, *words], capture_output=True, text=True, cwd=here)
                return {"words": words, "status": done.returncode, "output": done.stdout, "errors": done.stderr}

            laggard(["init", "my-continuum"])
            for file, text in FILES.items():
                (here / file).write_text(text)
            found = [laggard(words) for words in COMMANDS]
            return {"commands": found, "held": len(grid.held_jobs())}

    inside(play)
"""


@pytest.mark.long
@pytest.mark.timeout(1500)
@pytest.mark.skipif(lacking() is not None, reason=str(lacking()))
@pytest.mark.remote
def test_the_part_on_grid5000(own_runner: Runner) -> None:
    """It runs on the stand-in; where the kernel has no netem, with the rates of the links alone."""
    local, remote = split_steps()
    files = {step.file: step.text for step in local if step.file.startswith("my-continuum/")}
    commands = [complete(step.words) for step in remote]
    if not kernel_has_netem():
        commands = [
            [*words, "--set", RATES_ALONE] if "my-continuum" in words else words
            for words in commands
        ]
    head = f"\n    FILES = {json.dumps(files)}\n    COMMANDS = {json.dumps(commands)}\n"
    found = run_script(own_runner, head + SCRIPT, timeout_s=1200)
    for done in found["commands"]:
        accepted = {0, UNFAITHFUL} if done["words"][0] in TRAINING else {0}
        assert done["status"] in accepted, done
    assert found["held"] == 0
