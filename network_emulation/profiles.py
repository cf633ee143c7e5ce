"""Link profiles from `profiles.yaml`: measured or specified access technologies, by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    RootModel,
    model_validator,
)

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.model_problems import validate_model
from laggard.core.corrections.names import suggest_name
from laggard.core.units import DelayWithUnitMs, LossPercent, RateWithUnitMbps
from laggard.core.yaml_source import parse_yaml
from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.link_plan import Constraint
from laggard.network_emulation.loss_bursts import least_burst_packets

FILE = Path(__file__).with_name("profiles.yaml")


class _ProfileSection(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


class Direction(_ProfileSection):
    """One direction of a link, with the keys of the scenario files."""

    delay_ms: DelayWithUnitMs = Field(alias="delay")
    rate_mbps: RateWithUnitMbps = Field(alias="rate")
    jitter_ms: DelayWithUnitMs = Field(alias="jitter", default=0.0)
    distribution: Distribution = "uniform"
    loss_percent: LossPercent = Field(alias="loss", default=0.0)
    burst_packets: float = Field(alias="burst", default=1.0, ge=1)

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.jitter_ms > self.delay_ms:
            raise ValueError("jitter must not exceed the delay — lower the jitter")
        if self.loss_percent < 100 and 1 < self.burst_packets < least_burst_packets(
            self.loss_percent / 100
        ):
            raise ValueError("the burst is too short for the loss — raise the burst")
        return self

    @property
    def constraint(self) -> Constraint:
        """Return the same values as a constraint of the link plan."""
        return Constraint(
            self.delay_ms,
            self.jitter_ms,
            self.rate_mbps,
            self.loss_percent,
            self.distribution,
            self.burst_packets,
        )


class Profile(_ProfileSection):
    """Access technology.

    Attributes:
        up: direction from the profile's src, which has the access, to its dst.
        down: direction back.
        source: publication or standard, and the values taken from it.
    """

    up: Direction
    down: Direction
    source: str = Field(min_length=20)


class _Profiles(RootModel[dict[str, Profile]]):
    pass


@cache
def load_profiles() -> Mapping[str, Profile]:
    """Return all profiles by name, in the file's order."""
    return validate_model(parse_yaml(FILE.read_bytes(), FILE.name), _Profiles).root


def _require_known_profile(name: str) -> str:
    if name not in load_profiles():
        raise broken_rule("unknown profile", suggest_name(name, load_profiles()))
    return name


def _named_in_schema(schema: dict[str, JsonValue]) -> None:
    # The type is a plain string, so the JSON schema needs the names added.
    schema["enum"] = list(load_profiles())


ProfileName = Annotated[
    str,
    AfterValidator(_require_known_profile),
    Field(
        description="link profile for both directions; up is from src to dst",
        json_schema_extra=_named_in_schema,
    ),
]
