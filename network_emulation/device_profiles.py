"""Compute speeds of real devices from `devices.yaml`, by name, and groups to draw devices from."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue, RootModel

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.model_problems import validate_model
from laggard.core.corrections.names import suggest_name
from laggard.core.units import Share
from laggard.core.yaml_source import parse_yaml

FILE = Path(__file__).with_name("devices.yaml")


class _Groups(RootModel[dict[str, dict[str, Share]]]):
    pass


@cache
def load_device_groups() -> Mapping[str, Mapping[str, float]]:
    """Return the share of one core of each device, by its name, in groups."""
    return validate_model(parse_yaml(FILE.read_bytes(), FILE.name), _Groups).root


def list_device_names() -> Sequence[str]:
    """Return the names of all groups, then those of all devices."""
    groups = load_device_groups()
    return [*groups, *(name for devices in groups.values() for name in devices)]


def draw_device_shares(name: str, count: int, seed: int) -> Sequence[float]:
    """Return the shares of hosts that are such devices.

    Args:
        name: name of a device, or of a group, from which each host has a device at random.
        count: number of hosts.
        seed: seed of the draw.
    """
    groups = load_device_groups()
    if name in groups:
        shares = list(groups[name].values())
        return random.Random(seed).choices(shares, k=count)  # noqa: S311 - no secret
    return [next(devices[name] for devices in groups.values() if name in devices)] * count


def _require_known_device(name: str) -> str:
    names = list_device_names()
    if name not in names:
        raise broken_rule("unknown device", suggest_name(name, names))
    return name


def _named_in_schema(schema: dict[str, JsonValue]) -> None:
    # The type is a plain string, so the JSON schema needs the names added.
    schema["enum"] = list(list_device_names())


DeviceName = Annotated[
    str,
    AfterValidator(_require_known_device),
    Field(
        description=(
            "device whose speed the hosts have, or a group of devices, such as phones, from which"
            " each host has one at random; `cpu` wins"
        ),
        json_schema_extra=_named_in_schema,
    ),
]
