"""JSON Schemas of the scenario files, generated from the models.

Editors use them to complete and check YAML. `python -m laggard.scenario.json_schemas` writes the
files in `schemas/` again. A test fails if they are out of date.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Mapping
from functools import reduce
from pathlib import Path

from pydantic import BaseModel, TypeAdapter

from laggard.core.files.output_files import write_text
from laggard.layers_services.model import LayersServices, Workflow
from laggard.network_emulation.model import Heterogeneity, Network
from laggard.workloads.inference_workload import InferenceWorkload
from laggard.workloads.specification.flower_app import FlowerApp
from laggard.workloads.workload import Workload

SCHEMA_FOLDER = Path(__file__).resolve().parent / "schemas"
MODELS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "layers_services": (LayersServices,),
    "network": (Network,),
    "workflow": (Workflow,),
    "heterogeneity": (Heterogeneity,),
    "workload": (Workload, FlowerApp, InferenceWorkload),
}
"""Models of each file, of which its content is one."""


def get_schema_path(name: str) -> Path:
    """Return the path of a scenario file's schema, by the file's name without `.yaml`."""
    return SCHEMA_FOLDER / f"{name}.schema.json"


def format_schema(name: str) -> str:
    """Generate the text of a scenario file's schema."""
    union = reduce(operator.or_, MODELS[name])
    schema = TypeAdapter(union).json_schema(by_alias=True, mode="validation")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": f"{name}.yaml",
    }
    return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def write_schemas() -> None:
    """Write every schema."""
    SCHEMA_FOLDER.mkdir(exist_ok=True)
    for name in MODELS:
        write_text(get_schema_path(name), format_schema(name))


if __name__ == "__main__":
    write_schemas()
