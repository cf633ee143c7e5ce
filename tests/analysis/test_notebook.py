"""The notebooks run from top to bottom on run folders."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import laggard.analysis
from laggard.analysis.tables.load_run import RunData
from laggard.analysis.tables.write_run import write_run
from laggard.core.run_schema import StreamTask
from tests.analysis.campaign_tables import TableSpec, generate_rows, write_results
from tests.predict.scenario_folder import write_scenario

NOTEBOOKS = Path(laggard.analysis.__file__).with_name("notebooks")


@pytest.mark.parametrize(
    "name",
    ["stragglers", "stalls", "what_if", "compare_runs", "predict", "campaign", "incremental"],
)
def test_the_notebooks_as_shipped_have_no_outputs(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.long
def test_the_notebook_answers_and_redraws_every_figure(
    quickstart_run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = executed(
        "stragglers",
        tmp_path,
        monkeypatch,
        LAGGARD_RUN=str(write_run(quickstart_run, tmp_path / "run")),
    )
    assert sum("image/svg+xml" in data for data in shown) == 6
    assert any("edge hosts compute" in data.get("text/markdown", "") for data in shown)


@pytest.mark.long
def test_stalls_add_up_for_every_worker(
    quickstart_run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = executed(
        "stalls",
        tmp_path,
        monkeypatch,
        LAGGARD_RUN=str(write_run(quickstart_run, tmp_path / "run")),
    )
    assert any("interconnect" in data.get("text/plain", "") for data in shown)
    assert any("edge" in data.get("text/plain", "") for data in shown)
    assert sum("image/svg+xml" in data for data in shown) == 1


@pytest.mark.long
def test_what_if_answers(
    quickstart_run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = executed(
        "what_if",
        tmp_path,
        monkeypatch,
        LAGGARD_RUN=str(write_run(quickstart_run, tmp_path / "run")),
    )
    told = " ".join(data.get("text/markdown", "") for data in shown)
    assert "The run took" in told
    assert "Without any of them" in told


@pytest.mark.long
def test_runs_are_compared(
    quickstart_run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [write_run(quickstart_run, tmp_path / name) for name in ("one", "other")]
    shown = executed(
        "compare_runs", tmp_path, monkeypatch, LAGGARD_RUNS=os.pathsep.join(map(str, folders))
    )
    assert any("(2 runs)" in data.get("text/markdown", "") for data in shown)


@pytest.mark.long
def test_a_scenario_is_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = write_scenario(tmp_path / "known")
    shown = executed(
        "predict", tmp_path, monkeypatch, LAGGARD_SCENARIO=str(scenario), LAGGARD_WORKERS="2..4"
    )
    assert any("limited_by" in data.get("text/plain", "") for data in shown)
    assert sum("image/svg+xml" in data for data in shown) == 1


@pytest.mark.long
def test_a_campaign_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_results(tmp_path / "sweep", generate_rows(TableSpec(repeats=3)))
    shown = executed("campaign", tmp_path, monkeypatch, LAGGARD_CAMPAIGN=str(folder))
    assert any("best: strategy=local_sgd" in data.get("text/markdown", "") for data in shown)
    assert any("paired Student" in data.get("text/plain", "") for data in shown)
    assert sum("image/svg+xml" in data for data in shown) == 2


@pytest.mark.long
def test_what_was_forgotten_is_shown(
    quickstart_run: RunData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = tuple(
        StreamTask(
            classes=(number,), last_step=9 + 10 * number, initial_accuracy=0.1,
            steps=(9, 19), accuracies=accuracies,
        )
        for number, accuracies in enumerate([(0.9, 0.4), (0.0, 0.8)])
    )  # fmt: skip
    learnt = dataclasses.replace(quickstart_run, stream_tasks=tasks)
    run = write_run(learnt, tmp_path / "run")
    shown = executed("incremental", tmp_path, monkeypatch, LAGGARD_RUN=str(run))
    assert any("50.0 percentage points" in data.get("text/markdown", "") for data in shown)
    assert any("forgetting" in data.get("text/plain", "") for data in shown)
    assert sum("image/svg+xml" in data for data in shown) == 1


def executed(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, **environment: str
) -> list[dict[str, str]]:
    """What a notebook shows, run from top to bottom; nothing in it fails or prints."""
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    # The kernel of this interpreter, whatever kernels the machine has registered.
    NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    ).execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    assert not [o for o in outputs if o.output_type in {"error", "stream"}]
    return [o.data for o in outputs if "data" in o]
