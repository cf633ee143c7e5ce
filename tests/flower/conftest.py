"""Environment with Flower, which cannot be in Laggard's own: both need `rich`, of two versions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FLOWER = "flwr==1.42.0"
APP = Path(__file__).parent / "app"


@pytest.fixture(scope="session")
def flower_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a virtual environment that has Flower."""
    folder = tmp_path_factory.mktemp("flower") / "venv"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin/python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", FLOWER]
    subprocess.run(install, check=True)
    return python
