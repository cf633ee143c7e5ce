"""`network.yaml` (E2Clab's file, E2Clab's meaning) and `heterogeneity.yaml` (ours), as typed
values.

E2Clab's schema lets nonsense through (`delay: 10 parsecs`, any loss text); these models do not.
Everything that `heterogeneity.yaml` may say is parsed here; what the plan cannot emulate is refused
there, not here.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)
from pydantic_core import PydanticCustomError

from laggard.core.units import (
    DelayMs,
    DelayWithUnitMs,
    DurationS,
    LatencyMs,
    LossPercent,
    RateMbps,
    RateWithUnitMbps,
    Share,
    SizeBytes,
    ThroughputMBps,
)
from laggard.core.yaml_source import ERROR_SUBKEY
from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.profiles import ProfileName

MAX_BURST_PACKETS = 10_000.0
MAX_CHANGES = 200_000
"""Timed changes of one run; an entry that makes more has a mistake in its period."""

_LINK_KEYS = ("delay", "rate", "loss", "jitter", "distribution", "burst")

_M = TypeVar("_M", bound=BaseModel)

Pattern = Annotated[
    str,
    StringConstraints(
        strip_whitespace=True, pattern=r"^[A-Za-z0-9_.*?\[\]!&:,~^$|()+\\-]+$", max_length=500
    ),
    Field(
        description="hosts, as E2Clab's pattern layer.service.service_id.machine_id",
        examples=["edge.*"],
    ),
]


class _NetworkSection(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


def _written_as_text(value: object) -> object:
    if isinstance(value, str):
        return value
    raise ValueError(
        "E2Clab takes text here, a number with its unit — write it such as 10ms, 100mbit or 1%"
    )


_Text = BeforeValidator(_written_as_text)


class NetworkRule(_NetworkSection):
    """One rule of `network.yaml`: hosts that match `src` send to hosts that match `dst` under these
    constraints.
    """

    src: Pattern
    dst: Pattern
    delay_ms: Annotated[DelayMs, _Text] = Field(alias="delay")
    rate_mbps: Annotated[RateMbps, _Text] = Field(alias="rate")
    loss_percent: Annotated[LossPercent, _Text] = Field(alias="loss", default=0.0)
    symmetric: bool = Field(
        default=False, strict=True, description="also from dst to src; false where not written"
    )


class Network(_NetworkSection):
    """`network.yaml`: the rules in file order; a later rule replaces an earlier one for the same
    ordered pair.
    """

    networks: tuple[NetworkRule, ...] | None = Field(description="null for no emulation")

    @model_validator(mode="before")
    @classmethod
    def _empty_file_is_no_emulation(cls, value: object) -> object:
        return {"networks": None} if value is None else value

    @property
    def rules(self) -> tuple[NetworkRule, ...]:
        """The rules; empty where the file has none."""
        return self.networks or ()


class _Storage(_NetworkSection):
    read_mb_per_s: ThroughputMBps | None = Field(
        alias="read", default=None, description="of the host's drive"
    )
    write_mb_per_s: ThroughputMBps | None = Field(
        alias="write", default=None, description="of the host's drive"
    )
    read_latency_ms: LatencyMs | None = Field(alias="read_latency", default=None)
    write_latency_ms: LatencyMs | None = Field(alias="write_latency", default=None)


class HostRule(_Storage):
    """What matching hosts are from beginning to end: compute, memory, storage, access links."""

    hosts: Pattern
    cpu: Share | None = Field(default=None, description="share of one core, as speed")
    memory_bytes: SizeBytes | None = Field(alias="memory", default=None)
    uplink_mbps: RateWithUnitMbps | None = Field(alias="uplink", default=None)
    downlink_mbps: RateWithUnitMbps | None = Field(alias="downlink", default=None)

    @model_validator(mode="after")
    def _require_one_limit(self) -> Self:
        choices = "cpu, memory, read, write, read_latency, write_latency, uplink or downlink"
        return _at_least_one(self, ("hosts",), choices)


class SharedRule(_NetworkSection):
    """One bottleneck that all pairs between two groups of hosts share."""

    between: tuple[Pattern, Pattern]
    shared_mbps: RateWithUnitMbps = Field(alias="shared")


class LinkRule(_NetworkSection):
    """How the delay of links varies, packets keeping their order, and whether their losses come in
    bursts.
    """

    src: Pattern
    dst: Pattern
    jitter_ms: DelayWithUnitMs | None = Field(alias="jitter", default=None)
    distribution: Distribution = Field(
        default="uniform",
        description=(
            "uniform: delay ± jitter; normal: jitter is the standard deviation; pareto: as netem's"
            " table"
        ),
    )
    burst_packets: float | None = Field(
        alias="burst",
        default=None,
        ge=1,
        le=MAX_BURST_PACKETS,
        strict=True,
        description=(
            "packets lost in a row, on average, of the links' loss; 1, or none: losses are"
            " independent"
        ),
    )
    symmetric: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def _require_one_limit(self) -> Self:
        if self.jitter_ms is None and "distribution" in self.model_fields_set:
            raise ValueError(
                "a distribution is that of a jitter — add `jitter:`, 0ms where only events give"
                " these links one"
            )
        return _at_least_one(self, ("src", "dst", "symmetric", "distribution"), "jitter or burst")


def _reject_keys_with_profile(value: object) -> object:
    """A profile is an access technology: all of a link, both ways."""
    if not isinstance(value, Mapping) or "profile" not in value:
        return value
    for key in value:
        if key == "symmetric":
            rule = (
                "a profile is always both ways, up from src to dst and down from dst to src —"
                " remove it"
            )
            raise PydanticCustomError("key_conflicts_with_profile", rule, {ERROR_SUBKEY: (key,)})
        if key in _LINK_KEYS:
            rule = (
                "a profile says all of a link — remove it, or write it into an entry of its own, or"
                " remove the profile"
            )
            raise PydanticCustomError("key_conflicts_with_profile", rule, {ERROR_SUBKEY: (key,)})
    return value


class ProfileRule(_NetworkSection):
    """Links that are as a profile says, from src to dst (up) and back (down), in place of what
    network.yaml says of them.
    """

    src: Pattern
    dst: Pattern
    profile: ProfileName

    @model_validator(mode="before")
    @classmethod
    def _is_all(cls, value: object) -> object:
        return _reject_keys_with_profile(value)


class _HostChange(_Storage):
    hosts: Pattern
    cpu: Share | None = None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        return _at_least_one(
            self,
            ("hosts", "at_s", "for_s", "random"),
            "cpu, read, write, read_latency or write_latency",
        )


class _LinkChange(_NetworkSection):
    src: Pattern
    dst: Pattern
    delay_ms: DelayWithUnitMs | None = Field(alias="delay", default=None)
    rate_mbps: RateWithUnitMbps | None = Field(alias="rate", default=None)
    loss_percent: LossPercent | None = Field(alias="loss", default=None)
    jitter_ms: DelayWithUnitMs | None = Field(alias="jitter", default=None)
    profile: ProfileName | None = None
    symmetric: bool = Field(default=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _is_all(cls, value: object) -> object:
        return _reject_keys_with_profile(value)

    @property
    def both_ways(self) -> bool:
        """Whether it also changes the links from dst to src."""
        return self.symmetric or self.profile is not None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        return _at_least_one(
            self,
            ("src", "dst", "symmetric", "at_s", "for_s", "random"),
            "delay, rate, loss, jitter or profile",
        )


def _positive_s(value: float) -> float:
    if value <= 0:
        raise ValueError(
            "a change lasts longer than nothing — give a duration above zero, such as 10s"
        )
    return value


class _Once(_NetworkSection):
    at_s: DurationS = Field(alias="at", description="since the first training step began")
    for_s: DurationS = Field(alias="for")

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        _positive_s(self.for_s)
        return self


class Recurrence(_NetworkSection):
    """Once in every period, at a random moment of it, for a while; the seed makes the moments
    reproducible.
    """

    every_s: DurationS = Field(alias="every")
    for_s: DurationS = Field(alias="for")
    seed: int = Field(ge=0, le=2**32 - 1, strict=True)

    @model_validator(mode="after")
    def _fits_its_period(self) -> Self:
        if _positive_s(self.for_s) >= self.every_s:
            raise ValueError(
                "`for` must be shorter than `every` — lengthen the period, or use a deterministic"
                " entry"
            )
        return self


class TimedHostEvent(_Once, _HostChange):
    """Compute or storage of matching hosts, changed once for a while."""


class TimedLinkEvent(_Once, _LinkChange):
    """Links between matching hosts, changed once for a while."""


class RandomHostEvent(_HostChange):
    """Compute or storage of matching hosts, changed again and again at random moments."""

    random: Recurrence


class RandomLinkEvent(_LinkChange):
    """Links between matching hosts, changed again and again at random moments."""

    random: Recurrence


def _inside_the_scenario(value: object) -> object:
    path = PurePosixPath(value) if isinstance(value, str) else None
    if path is None or path.is_absolute() or ".." in path.parts or path.suffix != ".csv":
        raise ValueError(
            "a trace is a .csv file inside the scenario folder — give its path relative to that"
            " folder"
        )
    return value


class TraceEvent(_NetworkSection):
    """Links between matching hosts, following a CSV file (columns: seconds, delay_ms, rate_mbps,
    loss_percent).
    """

    trace: Annotated[str, BeforeValidator(_inside_the_scenario)]
    src: Pattern
    dst: Pattern
    symmetric: bool = Field(default=False, strict=True)

    @property
    def both_ways(self) -> bool:
        """Whether the links from dst to src follow it too."""
        return self.symmetric


def _list_keys(value: object) -> frozenset[str]:
    if isinstance(value, Mapping):
        return frozenset(str(key) for key in value)
    return frozenset(type(value).model_fields) if isinstance(value, BaseModel) else frozenset()


def _deterministic_kind(value: object) -> str | None:
    keys = _list_keys(value)
    if "hosts" in keys:
        return "host-rule"
    if "between" in keys:
        return "shared-rule"
    if "profile" in keys:
        return "profile-rule"
    return "link-rule" if keys & {"src", "dst"} else None


def _dynamic_kind(value: object) -> str | None:
    keys = _list_keys(value)
    if "trace" in keys:
        return "trace-event"
    target = "host" if "hosts" in keys else "link" if keys & {"src", "dst"} else None
    if target is None:
        return None
    return f"random-{target}" if "random" in keys else f"timed-{target}"


DeterministicRule = Annotated[
    Annotated[HostRule, Tag("host-rule")]
    | Annotated[SharedRule, Tag("shared-rule")]
    | Annotated[LinkRule, Tag("link-rule")]
    | Annotated[ProfileRule, Tag("profile-rule")],
    Discriminator(
        _deterministic_kind,
        custom_error_type="missing_hosts",
        custom_error_message=(
            "an entry names its hosts — write `hosts:`, `between:` or `src:` and `dst:`"
        ),
    ),
]

DynamicRule = Annotated[
    Annotated[TimedHostEvent, Tag("timed-host")]
    | Annotated[TimedLinkEvent, Tag("timed-link")]
    | Annotated[RandomHostEvent, Tag("random-host")]
    | Annotated[RandomLinkEvent, Tag("random-link")]
    | Annotated[TraceEvent, Tag("trace-event")],
    Discriminator(
        _dynamic_kind,
        custom_error_type="missing_hosts",
        custom_error_message="an event names its hosts — write `hosts:`, or `src:` and `dst:`",
    ),
]

LinkEvent = TimedLinkEvent | RandomLinkEvent | TraceEvent
HostEvent = TimedHostEvent | RandomHostEvent


class Heterogeneity(_NetworkSection):
    """`heterogeneity.yaml`: what hosts and links are throughout the run, and what changes while it
    runs.
    """

    deterministic: tuple[DeterministicRule, ...] | None = None
    dynamic: tuple[DynamicRule, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_file_is_homogeneous(cls, value: object) -> object:
        return {} if value is None else value

    @property
    def rules(self) -> tuple[HostRule | SharedRule | LinkRule | ProfileRule, ...]:
        """The deterministic entries in file order."""
        return self.deterministic or ()

    @property
    def events(self) -> tuple[HostEvent | LinkEvent, ...]:
        """The dynamic entries in file order."""
        return self.dynamic or ()


def _at_least_one(model: _M, besides: tuple[str, ...], choices: str) -> _M:
    said = [
        name
        for name in type(model).model_fields
        if name not in besides and getattr(model, name) is not None
    ]
    if not said:
        raise ValueError(f"an entry says what the hosts or links are like — add {choices}")
    return model
