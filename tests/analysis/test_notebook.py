"""The notebook runs from top to bottom on a run folder."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import laggard.analysis
from laggard.analysis.load import Run
from laggard.analysis.store import write_run

NOTEBOOK = Path(laggard.analysis.__file__).with_name("notebooks") / "stragglers.ipynb"


def test_the_notebook_as_shipped_has_no_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)


@pytest.mark.slow
def test_the_notebook_answers_and_redraws_every_figure(
    quickstart_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_run(quickstart_run, tmp_path / "run")
    monkeypatch.setenv("LAGGARD_RUN", str(folder))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    # The kernel of this interpreter, whatever kernels the machine has registered.
    client = NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [o for o in outputs if o.output_type in {"error", "stream"}]
    shown = [o.data for o in outputs if "data" in o]
    assert sum("image/svg+xml" in data for data in shown) == 5
    assert any("edge hosts compute" in data.get("text/markdown", "") for data in shown)
