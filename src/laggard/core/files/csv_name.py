"""Name of a CSV file inside a scenario's folder, as scenario files give it."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated

from pydantic import BeforeValidator


def _inside_the_scenario(value: object) -> object:
    path = PurePosixPath(value) if isinstance(value, str) else None
    if path is None or path.is_absolute() or ".." in path.parts or path.suffix != ".csv":
        raise ValueError(
            "this must be a .csv file inside the scenario folder — write its path relative to that"
            " folder"
        )
    return value


CsvName = Annotated[str, BeforeValidator(_inside_the_scenario)]
"""Path of a CSV file, relative to the scenario's folder and not outside it."""
