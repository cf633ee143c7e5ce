"""The JSON Schema of each scenario file, generated from the models, for editors that complete and
check YAML.

`python -m laggard.scenario.json_schemas` rewrites the files in `schemas/`; a test says when they
are out of date.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel

from laggard.layers_services.model import LayersServices, Workflow
from laggard.network_emulation.model import Heterogeneity, Network
from laggard.workloads.workload import Workload

SCHEMA_FOLDER = Path(__file__).resolve().parent / "schemas"
MODELS: Mapping[str, type[BaseModel]] = {
    "layers_services": LayersServices,
    "network": Network,
    "workflow": Workflow,
    "heterogeneity": Heterogeneity,
    "workload": Workload,
}


def get_schema_path(name: str) -> Path:
    """Where the schema of a scenario file lies, by the file's name without `.yaml`."""
    return SCHEMA_FOLDER / f"{name}.schema.json"


def format_schema(name: str) -> str:
    """The schema of a scenario file as it should lie there."""
    schema = MODELS[name].model_json_schema(by_alias=True, mode="validation")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"{name}.yaml",
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_schemas() -> None:
    """Bring every schema up to date."""
    SCHEMA_FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        get_schema_path(name).write_text(format_schema(name), encoding="utf-8")


if __name__ == "__main__":
    write_schemas()
