"""Models of `layers_services.yaml` and `workflow.yaml`, stricter than E2Clab's schemas.

Both files have E2Clab's meaning. The schemas of E2Clab 3.7 (`e2clab/schemas/*_schema.py`) accept
unknown keys almost everywhere; these models reject them. The exception is a service's metadata:
E2Clab allows any key there, so only a likely misspelling of a known key is rejected.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    RootModel,
    StrictBool,
    StrictInt,
    StrictStr,
    StringConstraints,
    WithJsonSchema,
    model_validator,
)

from laggard.core.corrections.broken_rules import broken_rule
from laggard.core.corrections.names import find_near_name
from laggard.core.edits import YamlValue, remove_key, rename_key, write_value

MAX_HOSTS = 20_000
# Ansible predefines these two groups.
_RESERVED = {"all", "ungrouped"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_WALLTIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d):([0-5]\d)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}", re.ASCII)


def _not_reserved(name: str) -> str:
    if name.lower() in _RESERVED:
        rule = f"`{name}` is reserved: Ansible has a group of this name"
        raise broken_rule(rule, write_value((), f"{name}-hosts", f"write for example {name}-hosts"))
    return name


def _plain_name(value: object) -> object:
    if isinstance(value, str) and _NAME.fullmatch(value):
        return value
    rule = (
        "a name has 1 to 63 characters (letters, digits, `_`, `-`) and begins with a letter or"
        " digit, as text"
    )
    near = next(iter(re.findall(_NAME, str(value))), "trainer")
    raise broken_rule(rule, write_value((), near, f"write for example {near}"))


Name = Annotated[
    StrictStr,
    BeforeValidator(_plain_name),
    AfterValidator(_not_reserved),
    WithJsonSchema({"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]*$", "maxLength": 63}),
]


def _walltime(value: object) -> object:
    if isinstance(value, str) and _WALLTIME.fullmatch(value):
        return value
    rule = "a walltime must be hh:mm:ss and at most 23:59:59, as in E2Clab"
    raise broken_rule(rule, write_value((), "02:00:00", 'write for example "02:00:00"'))


def _reservation_date(value: object) -> object:
    if isinstance(value, str) and _DATE.fullmatch(value):
        return value
    rule = "a reservation date is YYYY-MM-DD HH:MM:SS in Paris time, as text"
    example = "2027-01-31 19:00:00"
    raise broken_rule(rule, write_value((), example, f'write for example "{example}"'))


Walltime = Annotated[
    StrictStr,
    BeforeValidator(_walltime),
    WithJsonSchema({"type": "string", "pattern": f"^{_WALLTIME.pattern}$"}),
]
ReservationDate = Annotated[
    StrictStr,
    BeforeValidator(_reservation_date),
    WithJsonSchema({"type": "string", "pattern": f"^{_DATE.pattern}$"}),
]
# Any YAML 1.1 value: E2Clab gives it to a class or to Ansible unchanged, with dates and keys that
# are not text.
Metadata = dict[object, object]
_FurtherKeys = dict[str, object]
ProviderName = Literal["g5k", "iotlab", "chameleoncloud", "chameleonedge", "scalewayinstances"]


class _LayersSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FirewallRule(_LayersSection):
    """Ports that Grid'5000 opens to the outside for some services."""

    services: tuple[StrictStr, ...]
    ports: tuple[object, ...] = ()
    proto: Literal["tcp+udp", "all"] = "tcp+udp"


class _Provider(_LayersSection):
    job_name: StrictStr | None = None
    walltime: Walltime | None = None
    cluster: StrictStr | None = None


class G5k(_Provider):
    """Settings of E2Clab's reservation on Grid'5000."""

    queue: Literal["default", "production", "besteffort", "testing"] | None = None
    reservation: ReservationDate | None = None
    job_type: tuple[StrictStr, ...] | None = None
    env_name: StrictStr | None = None
    key_name: StrictStr | None = None
    firewall_rules: tuple[FirewallRule, ...] | None = None
    monitor: StrictStr | None = None
    ipv6: StrictBool | None = None

    @model_validator(mode="after")
    def _environments_are_deployed(self) -> Self:
        if self.env_name is not None and "deploy" not in (self.job_type or ()):
            types: list[YamlValue] = [*(self.job_type or ()), "deploy"]
            advice = write_value(
                ("job_type",), types, f"add `job_type: [{', '.join(map(str, types))}]`"
            )
            raise broken_rule("`env_name` requires job type `deploy`", advice, ("env_name",))
        return self


class Iotlab(_Provider):
    """Settings of E2Clab's reservation on FIT IoT-LAB."""


class ChameleonCloud(_Provider):
    """Settings of E2Clab's reservation on Chameleon Cloud."""

    rc_file: StrictStr | None = None
    key_name: StrictStr | None = None
    image: StrictStr | None = None


class ChameleonEdge(_Provider):
    """Settings of E2Clab's reservation on Chameleon Edge."""

    rc_file: StrictStr | None = None
    image: StrictStr | None = None


class Scaleway(_Provider):
    """Settings of E2Clab's reservation of Scaleway instances."""

    profile: StrictStr | None = None
    config_file: StrictStr | None = None
    region: StrictStr | None = None
    ipv6: StrictBool | None = None
    architecture: Literal["standalone", "private_network"] | None = None
    zone: StrictStr | None = None
    gateway_type: StrictStr | None = None
    image: StrictStr | None = None
    commercial_type: StrictStr | None = None
    ports_to_open: tuple[tuple[object, ...], ...] | None = None


class Environment(_LayersSection):
    """Providers that E2Clab would deploy to, and the settings that they share.

    The local testbed ignores this section.
    """

    job_name: StrictStr | None = None
    walltime: Walltime | None = None
    cluster: StrictStr | None = None
    g5k: G5k | None = None
    iotlab: Iotlab | None = None
    chameleoncloud: ChameleonCloud | None = None
    chameleonedge: ChameleonEdge | None = None
    scalewayinstances: Scaleway | None = None

    @model_validator(mode="after")
    def _has_a_provider(self) -> Self:
        providers = (
            self.g5k,
            self.iotlab,
            self.chameleoncloud,
            self.chameleonedge,
            self.scalewayinstances,
        )
        if all(provider is None for provider in providers):
            advice = write_value(("g5k",), {}, "add `g5k: {}`; the local testbed ignores it")
            raise broken_rule("no provider is given and E2Clab requires one", advice)
        return self


class Service(BaseModel):
    """Service of a layer.

    Keys that E2Clab does not know are metadata. They are passed to the service unchanged.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: _FurtherKeys

    name: Annotated[Name, Field(description="name of the service", examples=["trainer"])]
    quantity: Annotated[StrictInt, Field(ge=1, description="number of machines")] = 1
    roles: Annotated[
        tuple[Name, ...], Field(description="additional roles of the service's machines")
    ] = ()
    repeat: Annotated[
        StrictInt,
        Field(
            ge=0, description="number of additional copies of this service at the end of the layer"
        ),
    ] = 0
    env: Annotated[Metadata, Field(description="variables that the service's own class reads")] = {}
    environment: Annotated[
        ProviderName | None, Field(description="provider of this service; the first one by default")
    ] = None
    cluster: StrictStr | None = None
    servers: tuple[StrictStr, ...] | StrictStr | None = None
    archi: StrictStr | None = None

    _metadata_of_e2clab: ClassVar[frozenset[str]] = frozenset(
        {"image", "profile", "ports", "containers"}
    )

    @property
    def metadata(self) -> _FurtherKeys:
        """Return the keys that E2Clab passes to the service without reading them."""
        return dict(self.__pydantic_extra__ or {})

    @property
    def machines(self) -> int:
        """Return the number of machines of one such service.

        It is the number of listed servers, or `quantity` if no servers are listed or a cluster is
        given.
        """
        if self.servers is None or self.cluster is not None:
            return self.quantity
        return 1 if isinstance(self.servers, str) else len(self.servers)

    @model_validator(mode="after")
    def _metadata_is_not_misspelt(self) -> Self:
        known = list(type(self).model_fields)
        for key, value in self.metadata.items():
            near = find_near_name(key, known, cutoff=0.75)
            if near is None or key in self._metadata_of_e2clab:
                continue
            if near in self.model_fields_set:
                advice = remove_key((key,), f"remove it, since `{near}` is given too, or rename it")
            else:
                text = f"write `{near}`, or rename this metadata"
                advice = rename_key((key,), near, cast("YamlValue", value), text)
            raise broken_rule(f"`{key}` looks like a misspelling", advice, (key,))
        return self


class Layer(_LayersSection):
    """Tier of the continuum, such as edge, fog or cloud."""

    name: Annotated[Name, Field(description="name of the layer", examples=["cloud", "fog", "edge"])]
    services: Annotated[
        tuple[Service, ...],
        Field(description="services of the layer, in order", examples=[[{"name": "trainer"}]]),
    ]

    @property
    def machines(self) -> int:
        """Return the number of machines of the whole layer."""
        return sum(service.machines * (service.repeat + 1) for service in self.services)


class LayersServices(_LayersSection):
    """Layers of the continuum and their services (`layers_services.yaml`)."""

    environment: Environment = Field(examples=[{"g5k": {}}])
    layers: tuple[Layer, ...] = Field(
        examples=[[{"name": "edge", "services": [{"name": "trainer"}]}]]
    )
    provenance: Metadata | None = None
    monitoring: Metadata | None = None
    monitoring_iotlab: Metadata | None = None
    kwollect: Metadata | None = None

    @model_validator(mode="after")
    def _names_hosts(self) -> Self:
        counts = Counter(layer.name.lower() for layer in self.layers)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            second = [i for i, layer in enumerate(self.layers) if layer.name.lower() == twice[0]][1]
            place = ("layers", second, "name")
            free = next(
                name
                for n in range(2, len(counts) + 3)
                if (name := f"{twice[0][:58]}{n}") not in counts
            )
            advice = write_value(place, free, f"write for example {free}, or merge the layers")
            raise broken_rule("two layers have this name (case is ignored)", advice, place)
        machines = sum(layer.machines for layer in self.layers)
        if machines > MAX_HOSTS:
            rule = f"the layers define {machines} hosts and the maximum is {MAX_HOSTS}"
            raise broken_rule(rule, "lower `quantity` or `repeat`", ("layers",))
        if machines == 0:
            layer: YamlValue = {"name": "edge", "services": [{"name": "trainer"}]}
            text = "write for example `- {name: edge, services: [{name: trainer}]}` below `layers:`"
            advice = write_value(("layers",), [layer], text)
            rule = "no layer has a service, so the continuum has no hosts"
            raise broken_rule(rule, advice, ("layers",))
        return self


class DependsOn(_LayersSection):
    """Hosts whose information is passed to the hosts of a play."""

    service_selector: Annotated[StrictStr, Field(examples=["*"])]
    prefix: StrictStr
    grouping: Literal["round_robin", "asarray", "aggregate", "address_match"]
    array_info: Literal["id", "hostname", "g5k_ipv6_hostname"] = "id"


AnsibleTasks = tuple[dict[StrictStr, object], ...]
PLAY_KEYWORDS = frozenset(
    {
        "any_errors_fatal",
        "become",
        "become_exe",
        "become_flags",
        "become_method",
        "become_user",
        "check_mode",
        "collections",
        "connection",
        "debugger",
        "diff",
        "environment",
        "fact_path",
        "force_handlers",
        "gather_facts",
        "gather_subset",
        "gather_timeout",
        "handlers",
        "ignore_errors",
        "ignore_unreachable",
        "max_fail_percentage",
        "module_defaults",
        "name",
        "no_log",
        "order",
        "port",
        "post_tasks",
        "pre_tasks",
        "remote_user",
        "roles",
        "run_once",
        "serial",
        "strategy",
        "tags",
        "throttle",
        "timeout",
        "vars",
        "vars_files",
        "vars_prompt",
    }
)


class Play(BaseModel):
    """Ansible tasks for some hosts, in E2Clab's three stages.

    Other keys are keywords of an Ansible play.
    """

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: _FurtherKeys

    hosts: Annotated[
        StrictStr,
        StringConstraints(min_length=1),
        Field(description="host pattern", examples=["all", "edge.*"]),
    ]
    depends_on: tuple[DependsOn, ...] = ()
    prepare: AnsibleTasks = ()
    launch: AnsibleTasks = ()
    finalize: AnsibleTasks = ()

    @model_validator(mode="after")
    def _other_keys_are_ansibles(self) -> Self:
        for key, value in (self.__pydantic_extra__ or {}).items():
            if key not in PLAY_KEYWORDS:
                known = sorted(PLAY_KEYWORDS | set(type(self).model_fields) - self.model_fields_set)
                near = find_near_name(key, known)
                advice = (
                    rename_key((key,), near, cast("YamlValue", value), f"did you mean `{near}`?")
                    if near is not None
                    else remove_key((key,))
                )
                raise broken_rule(f"`{key}` is not a key of a play", advice, (key,))
        return self


class Workflow(RootModel[tuple[Play, ...]]):
    """List of plays (`workflow.yaml`); `[]` if there is nothing to run."""

    model_config = ConfigDict(frozen=True)

    @property
    def plays(self) -> tuple[Play, ...]:
        """Return the plays in order."""
        return self.root
