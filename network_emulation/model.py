"""Models of `network.yaml` (E2Clab's file and meaning) and `heterogeneity.yaml` (Laggard's).

E2Clab's schema accepts nonsense (`delay: 10 parsecs`, any loss text); these models do not. All
keys of `heterogeneity.yaml` are parsed here. Values that the plan cannot emulate are refused by
planning, not here.

Error texts have the form "rule — fix"; `core/yaml_source.py` splits them at the dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.edits import Correction, Edit, remove_key, write_value
from laggard.core.files.csv_name import CsvName
from laggard.core.units import (
    DelayWithUnitMs,
    DurationS,
    LatencyMs,
    LossPercent,
    RateWithUnitMbps,
    Share,
    SizeBytes,
    ThroughputMBps,
)
from laggard.network_emulation.device_profiles import DeviceName, load_device_groups
from laggard.network_emulation.e2clab_units import (
    E2clabDelayMs,
    E2clabLossPercent,
    E2clabRateMbps,
)
from laggard.network_emulation.jitter import Distribution
from laggard.network_emulation.profiles import ProfileName

MAX_BURST_PACKETS = 10_000.0
"""Largest mean burst that `burst` accepts."""
MAX_CHANGES = 200_000
"""Largest number of timed changes in one run; an entry that makes more has a mistake in its
period."""

_LINK_KEYS = ("delay", "rate", "loss", "jitter", "distribution", "burst")

_M = TypeVar("_M", bound=BaseModel)

Pattern = Annotated[
    str,
    Field(
        description="pattern of hosts, in E2Clab's form layer.service.service_id.machine_id",
        examples=["all", "edge.*"],
        # For editors only: a model does not know the hosts, so patterns are checked later.
        json_schema_extra={
            "pattern": r"^[A-Za-z0-9_.*?\[\]!&:,~^$|()+\\-]+$",
            "maxLength": 500,
        },
    ),
]


class _NetworkSection(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, allow_inf_nan=False
    )


class NetworkRule(_NetworkSection):
    """One rule of `network.yaml`.

    Hosts that match `src` send to hosts that match `dst` under these constraints.
    """

    src: Pattern
    dst: Pattern
    delay_ms: E2clabDelayMs = Field(alias="delay")
    rate_mbps: E2clabRateMbps = Field(alias="rate")
    loss_percent: E2clabLossPercent = Field(alias="loss", default=0.0)
    symmetric: bool = Field(
        default=False, strict=True, description="true applies the rule from dst to src too"
    )


class Network(_NetworkSection):
    """Rules of `network.yaml` in file order.

    A later rule replaces an earlier one for the same ordered pair.
    """

    networks: tuple[NetworkRule, ...] | None = Field(
        examples=[None], description="rules in order; null disables the emulation of links"
    )

    @model_validator(mode="before")
    @classmethod
    def _empty_file_is_no_emulation(cls, value: object) -> object:
        return {"networks": None} if value is None else value

    @property
    def rules(self) -> tuple[NetworkRule, ...]:
        """Return the rules; empty if the file has none."""
        return self.networks or ()


class _Storage(_NetworkSection):
    read_mb_per_s: ThroughputMBps | None = Field(
        alias="read", default=None, description="read bandwidth of the host's drive"
    )
    write_mb_per_s: ThroughputMBps | None = Field(
        alias="write", default=None, description="write bandwidth of the host's drive"
    )
    read_latency_ms: LatencyMs | None = Field(alias="read_latency", default=None)
    write_latency_ms: LatencyMs | None = Field(alias="write_latency", default=None)


class HostRule(_Storage):
    """Limits of matching hosts for the whole run: compute, memory, storage, access links."""

    hosts: Pattern
    cpu: Share | None = Field(default=None, description="speed of the host, as a share of one core")
    device: DeviceName | None = None
    seed: int = Field(
        default=1, ge=0, strict=True, description="seed of the draw, if device is a group"
    )
    memory_bytes: SizeBytes | None = Field(alias="memory", default=None)
    uplink_mbps: RateWithUnitMbps | None = Field(alias="uplink", default=None)
    downlink_mbps: RateWithUnitMbps | None = Field(alias="downlink", default=None)

    @model_validator(mode="after")
    def _require_one_limit(self) -> Self:
        choices = (
            "cpu, device, memory, read, write, read_latency, write_latency, uplink or downlink"
        )
        if "seed" in self.model_fields_set and self.device not in load_device_groups():
            advice = remove_key(("seed",), "remove it, or name a group, such as phones")
            raise broken_rule("only a group of devices is drawn with a seed", advice, ("seed",))
        return _at_least_one(self, ("hosts", "seed"), choices)


class SharedRule(_NetworkSection):
    """One bottleneck that all pairs between two groups of hosts share."""

    between: tuple[Pattern, Pattern]
    shared_mbps: RateWithUnitMbps = Field(alias="shared")


class LinkRule(_NetworkSection):
    """Jitter and loss bursts of links; packets keep their order."""

    src: Pattern
    dst: Pattern
    jitter_ms: DelayWithUnitMs | None = Field(alias="jitter", default=None, examples=["0ms"])
    distribution: Distribution = Field(
        default="uniform",
        description=(
            "distribution of the delay; uniform: delay ± jitter; normal: jitter is the standard"
            " deviation; pareto: netem's table"
        ),
    )
    burst_packets: float | None = Field(
        alias="burst",
        default=None,
        ge=1,
        le=MAX_BURST_PACKETS,
        strict=True,
        description=(
            "mean number of consecutive lost packets; with 1 or no value, losses are independent"
        ),
    )
    symmetric: bool = Field(default=False, strict=True)

    @model_validator(mode="after")
    def _require_one_limit(self) -> Self:
        if self.jitter_ms is None and "distribution" in self.model_fields_set:
            text = "add `jitter: 0ms`, or more if not only events set a jitter"
            advice = write_value(("jitter",), "0ms", text)
            raise broken_rule("`distribution` needs a jitter", advice, ("distribution",))
        return _at_least_one(self, ("src", "dst", "symmetric", "distribution"), "jitter or burst")


def _reject_keys_with_profile(value: object) -> object:
    """Raise an error if an entry has a profile and link keys.

    A profile is an access technology: it defines the whole link in both directions.
    """
    if not isinstance(value, Mapping) or "profile" not in value:
        return value
    excluded = [str(key) for key in value if key in ("symmetric", *_LINK_KEYS)]
    if excluded:
        names = ", ".join(f"`{key}`" for key in excluded)
        edits = tuple(Edit((key,), removes=True) for key in excluded)
        text = f"remove {names}, write an entry of its own for it, or remove the profile"
        rule = "a profile defines the whole link in both directions, up from src to dst"
        raise broken_rule(rule, Correction(text, edits), (excluded[0],))
    return value


def _reject_keys_with_down(value: object) -> object:
    """Raise an error if an event takes a link down and sets another property of it."""
    if isinstance(value, Mapping) and value.get("down") is not None:
        for key in (*_LINK_KEYS, "profile"):
            if key in value:
                rule = "a link that is down loses every packet, so this key has no effect"
                advice = remove_key((key,), "remove this key, or `down`")
                raise broken_rule(rule, advice, (key,))
    return value


class ProfileRule(_NetworkSection):
    """Links with a profile, from src to dst (up) and back (down); it overrides network.yaml."""

    src: Pattern
    dst: Pattern
    profile: ProfileName

    @model_validator(mode="before")
    @classmethod
    def _is_all(cls, value: object) -> object:
        return _reject_keys_with_profile(value)


class MatrixRule(_NetworkSection):
    """Delay, rate and loss of the links between single hosts, from a CSV file.

    The first row names the hosts that receive, the first column those that send. A cell has values
    with units, such as `10ms` or `10ms 100mbit 1%`; an empty cell is no rule.
    """

    matrix: CsvName


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
    jitter_ms: DelayWithUnitMs | None = Field(alias="jitter", default=None, examples=["0ms"])
    profile: ProfileName | None = None
    down: Literal[True] | None = Field(
        default=None, description="true takes the link down: every packet is lost"
    )
    symmetric: bool = Field(default=False, strict=True)

    @model_validator(mode="before")
    @classmethod
    def _is_all(cls, value: object) -> object:
        return _reject_keys_with_down(_reject_keys_with_profile(value))

    @property
    def lost_percent(self) -> float | None:
        """Return the loss that the event sets, in percent; None if it sets none."""
        return 100.0 if self.down else self.loss_percent

    @property
    def both_ways(self) -> bool:
        """Return True if the event also changes the links from dst to src."""
        return self.symmetric or self.profile is not None

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        return _at_least_one(
            self,
            ("src", "dst", "symmetric", "at_s", "for_s", "random"),
            "delay, rate, loss, jitter, profile or down",
        )


def _positive_s(value: float) -> float:
    if value <= 0:
        advice = write_value(("for",), "1s", "write for example 1s")
        raise broken_rule("a duration must be greater than 0", advice, ("for",))
    return value


class _Once(_NetworkSection):
    at_s: DurationS = Field(alias="at", description="virtual time after the start of training")
    for_s: DurationS = Field(alias="for")

    @model_validator(mode="after")
    def _lasts(self) -> Self:
        _positive_s(self.for_s)
        return self


class Recurrence(_NetworkSection):
    """Recurrence of an event: once in every period, at a random moment, for a given time.

    The seed makes the moments reproducible.
    """

    every_s: DurationS = Field(alias="every")
    for_s: DurationS = Field(alias="for")
    seed: int = Field(ge=0, le=2**32 - 1, strict=True)

    @model_validator(mode="after")
    def _fits_its_period(self) -> Self:
        if _positive_s(self.for_s) >= self.every_s:
            longer = f"{2 * self.for_s:g}s"
            text = f"lengthen `every`, for example to {longer}, or use a deterministic entry"
            advice = write_value(("every",), longer, text)
            raise broken_rule("`for` must be shorter than `every`", advice, ("every",))
        return self


class TimedHostEvent(_Once, _HostChange):
    """Compute or storage of matching hosts, changed once for a given time."""


class TimedLinkEvent(_Once, _LinkChange):
    """Links between matching hosts, changed once for a given time."""


class RandomHostEvent(_HostChange):
    """Compute or storage of matching hosts, changed repeatedly at random moments."""

    random: Recurrence


class RandomLinkEvent(_LinkChange):
    """Links between matching hosts, changed repeatedly at random moments."""

    random: Recurrence


class TraceEvent(_NetworkSection):
    """Links between matching hosts that follow a CSV file.

    Its columns are seconds, delay_ms, rate_mbps and loss_percent.
    """

    trace: CsvName
    src: Pattern
    dst: Pattern
    symmetric: bool = Field(default=False, strict=True)

    @property
    def both_ways(self) -> bool:
        """Return True if the links from dst to src follow the file too."""
        return self.symmetric


def _list_keys(value: object) -> frozenset[str]:
    if isinstance(value, Mapping):
        return frozenset(str(key) for key in value)
    return frozenset(type(value).model_fields) if isinstance(value, BaseModel) else frozenset()


# The keys decide the kind of an entry. So an error is reported for that kind only, and not for
# every member of the union.
def _deterministic_kind(value: object) -> str | None:
    keys = _list_keys(value)
    if "hosts" in keys:
        return "host-rule"
    if "between" in keys:
        return "shared-rule"
    if "profile" in keys:
        return "profile-rule"
    if "matrix" in keys:
        return "matrix-rule"
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
    | Annotated[ProfileRule, Tag("profile-rule")]
    | Annotated[MatrixRule, Tag("matrix-rule")],
    Discriminator(
        _deterministic_kind,
        custom_error_type="missing_hosts",
        custom_error_message=(
            "an entry must name its hosts — add `hosts:`, `between:`, `matrix:`, or `src:` and"
            " `dst:`"
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
        custom_error_message="an event must name its hosts — add `hosts:`, or `src:` and `dst:`",
    ),
]

LinkEvent = TimedLinkEvent | RandomLinkEvent | TraceEvent
HostEvent = TimedHostEvent | RandomHostEvent


class Heterogeneity(_NetworkSection):
    """Entries of `heterogeneity.yaml`: constant limits of hosts and links, and timed changes."""

    deterministic: tuple[DeterministicRule, ...] | None = None
    dynamic: tuple[DynamicRule, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_file_is_homogeneous(cls, value: object) -> object:
        return {} if value is None else value

    @property
    def rules(self) -> tuple[HostRule | SharedRule | LinkRule | ProfileRule | MatrixRule, ...]:
        """Return the deterministic entries in file order."""
        return self.deterministic or ()

    @property
    def matrices(self) -> Mapping[str, int]:
        """Return the position of the first entry that names each matrix file."""
        named = [
            (rule.matrix, i) for i, rule in enumerate(self.rules) if isinstance(rule, MatrixRule)
        ]
        return dict(reversed(named))

    @property
    def events(self) -> tuple[HostEvent | LinkEvent, ...]:
        """Return the dynamic entries in file order."""
        return self.dynamic or ()


def _at_least_one(model: _M, besides: tuple[str, ...], choices: str) -> _M:
    said = [
        name
        for name in type(model).model_fields
        if name not in besides and getattr(model, name) is not None
    ]
    if not said:
        name = "cpu" if "hosts" in type(model).model_fields else "jitter"
        example = {"cpu": "25%", "jitter": "0ms"}[name]
        advice = write_value((name,), example, f"add {choices}, for example `{name}: {example}`")
        raise broken_rule("an entry must set at least one limit", advice)
    return model
