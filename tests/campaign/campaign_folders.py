"""Campaigns over the small scenario whose runs are answered at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from laggard.campaign import cell_runs
from laggard.campaign.campaign_state import Row
from laggard.campaign.cells import Cell
from laggard.campaign.progress import CampaignProgress
from laggard.campaign.run_campaign import CampaignOptions, CampaignResult, run_campaign
from laggard.campaign.run_subprocess import SubprocessRun
from tests.command_line import SMALL

DONE: Mapping[str, object] = {"status": "done", "id": "x", "stragglers": []}


@dataclass
class SilentDisplay:
    """A display that keeps what it is shown."""

    rows: list[tuple[Cell, Row]] = field(default_factory=list)

    def show_start(self, progress: CampaignProgress) -> None:
        """Nothing."""

    def show_cell(self, cell: Cell, progress: CampaignProgress) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def show_row(self, cell: Cell, row: Row, progress: CampaignProgress) -> None:
        self.rows.append((cell, row))


@dataclass
class CampaignFolder:
    """A folder with a campaign file, the small scenario, and run folders that nobody writes.

    Attributes:
        answer: what the n-th run of `overrides` answers.
        started: overrides of every run that was started.
    """

    folder: Path
    answer: Callable[[int, Sequence[str]], Mapping[str, object]]
    started: list[tuple[str, ...]] = field(default_factory=list)
    commands: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "campaign.yaml"

    @property
    def state(self) -> Path:
        return self.folder / "runs/campaigns/campaign"

    def run(
        self, text: str | None = None, name: str | None = None, options: tuple[str, ...] = ()
    ) -> CampaignResult:
        """Run the campaign with this text."""
        if text is not None:
            self.file.write_text(text)
        given = CampaignOptions(self.folder / "runs", name, run_options=options)
        return run_campaign(self.file, given, SilentDisplay())


@pytest.fixture
def campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CampaignFolder:
    """Write the small scenario; every run is done at once."""
    scenario = tmp_path / "small"
    scenario.mkdir()
    for name, text in SMALL.items():
        (scenario / name).write_text(text)
    (tmp_path / "runs").mkdir()
    made = CampaignFolder(tmp_path, lambda _, __: DONE)

    def answer(
        _: Path, overrides: Sequence[str], _runs: Path, *, command: Sequence[str], **_more: object
    ) -> SubprocessRun:
        made.started.append(tuple(overrides))
        made.commands.append(tuple(command))
        return SubprocessRun(0, made.answer(len(made.started), overrides))

    monkeypatch.setattr(cell_runs, "run_in_subprocess", answer)
    return made
