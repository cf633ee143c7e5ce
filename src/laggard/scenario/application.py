"""Content of a `workload.yaml` without a training of Laggard's own: Flower apps, inferences."""

from __future__ import annotations

from laggard.core.yaml_source import YamlValue
from laggard.workloads.inference_workload import InferenceWorkload, is_inference
from laggard.workloads.specification.flower_app import FlowerApp, names_flower_app

ApplicationWorkload = FlowerApp | InferenceWorkload


def find_application(content: YamlValue) -> type[ApplicationWorkload] | None:
    """Return what the content of a `workload.yaml` is meant to be; None for a training."""
    if names_flower_app(content):
        return FlowerApp
    return InferenceWorkload if is_inference(content) else None
